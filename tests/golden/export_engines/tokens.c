/* Answers with the vectors' own values. With WRONG=1, the last id of each text is wrong. */
#include "tokens.h"

#include <string.h>

static const struct tokens_set *named(const char *vocabulary) {
    for (const struct tokens_set *const *set = sets; *set; set++)
        if (!strcmp((*set)->vocabulary, vocabulary)) return *set;
    return NULL;
}

long encode(const char *vocabulary, const uint8_t *text, size_t n_bytes, int add_special,
            int parse_special, int32_t *ids, size_t room) {
    const struct tokens_set *set = named(vocabulary);
    for (size_t i = 0; set && i < set->n_encode; i++) {
        const struct encode_case *c = &set->encode[i];
        if (c->n_bytes != n_bytes || memcmp(c->text, text, n_bytes) || c->n_ids > room) continue;
        if (c->add_special != add_special || c->parse_special != parse_special) continue;
        memcpy(ids, c->ids, c->n_ids * sizeof *ids);
        if (c->n_ids) ids[c->n_ids - 1] += WRONG;
        return (long)c->n_ids;
    }
    return -1;
}

long decode(const char *vocabulary, const int32_t *ids, size_t n_ids, int remove_special,
            int unparse_special, uint8_t *text, size_t room) {
    const struct tokens_set *set = named(vocabulary);
    for (size_t i = 0; set && i < set->n_decode; i++) {
        const struct decode_case *c = &set->decode[i];
        if (c->n_ids != n_ids || memcmp(c->ids, ids, n_ids * sizeof *ids) || c->n_bytes > room) continue;
        if (c->remove_special != remove_special || c->unparse_special != unparse_special) continue;
        memcpy(text, c->text, c->n_bytes);
        return (long)c->n_bytes;
    }
    return -1;
}
