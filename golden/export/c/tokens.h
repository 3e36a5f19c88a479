/* Texts and the ids of their tokens, and ids and the bytes that they stand for, by vocabulary. */
#include <stddef.h>
#include <stdint.h>

struct encode_case {
    const char *id;
    const uint8_t *text;  /* any bytes: some are no UTF-8 */
    size_t n_bytes;
    int add_special;      /* add what the model wants around a text, such as BOS */
    int parse_special;    /* the text of a control token stands for that token */
    const int32_t *ids;
    size_t n_ids;
};

struct decode_case {
    const char *id;
    const int32_t *ids;
    size_t n_ids;
    int remove_special;   /* leave out what add_special adds */
    int unparse_special;  /* write control tokens out */
    const uint8_t *text;
    size_t n_bytes;
};

struct tokens_set {
    const char *vocabulary;
    const char *sha256;   /* of the GGUF file that holds it; models/VOCABULARY.gguf if it is there */
    size_t n_encode, n_decode;
    const struct encode_case *encode;
    const struct decode_case *decode;
};

extern const struct tokens_set *const sets[]; /* NULL behind the last */

/* Yours: the number of ids, or of bytes; -1: not offered. More than `room` are not to be written. */
long encode(const char *vocabulary, const uint8_t *text, size_t n_bytes, int add_special,
            int parse_special, int32_t *ids, size_t room);
long decode(const char *vocabulary, const int32_t *ids, size_t n_ids, int remove_special,
            int unparse_special, uint8_t *text, size_t room);
