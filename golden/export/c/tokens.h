/* Texts and their token ids, and token ids and their bytes, for each vocabulary. */
#include <stddef.h>
#include <stdint.h>

struct encode_case {
    const char *id;
    const uint8_t *text;  /* any bytes; some are not UTF-8 */
    size_t n_bytes;
    int add_special;      /* add the special tokens of the model, such as BOS */
    int parse_special;    /* the text of a control token becomes that token */
    const int32_t *ids;
    size_t n_ids;
};

struct decode_case {
    const char *id;
    const int32_t *ids;
    size_t n_ids;
    int remove_special;   /* remove the tokens that add_special adds */
    int unparse_special;  /* write control tokens as text */
    const uint8_t *text;
    size_t n_bytes;
};

struct tokens_set {
    const char *vocabulary;
    const char *sha256;   /* of the GGUF file with the vocabulary, models/VOCABULARY.gguf if it exists */
    size_t n_encode, n_decode;
    const struct encode_case *encode;
    const struct decode_case *decode;
};

extern const struct tokens_set *const sets[]; /* ends with NULL */

/* You write these: return the number of ids or bytes, or -1 if you do not support the vocabulary. Do
   not write more than `room`. */
long encode(const char *vocabulary, const uint8_t *text, size_t n_bytes, int add_special,
            int parse_special, int32_t *ids, size_t room);
long decode(const char *vocabulary, const int32_t *ids, size_t n_ids, int remove_special,
            int unparse_special, uint8_t *text, size_t room);
