/* Runs your `encode` and `decode` on every case: cc -std=c99 *.c engine.c -lm && ./a.out
   Exit codes: 0 all are right; 1 some are wrong; 3 no vocabulary is supported. */
#include "tokens.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROOM (1 << 20) /* bytes; more than any answer needs */
#define SHOWN 20       /* wrong answers that are printed */

static size_t wrong, asked, not_offered;
static int32_t ids[ROOM / sizeof(int32_t)];
static uint8_t text[ROOM];

/* Counts one answer, and prints the first wrong ones. Returns 0 if the engine does not support it. */
static int judged(const char *vocabulary, const char *way, const char *id, long n, size_t want,
                  int same) {
    if (n < 0) return 0;
    asked++;
    if (!same && wrong++ < SHOWN)
        printf("%s %s %s: WRONG: %ld, expected %zu%s\n", vocabulary, way, id, n, want,
               (size_t)n == want ? ", and not all the same" : "");
    return 1;
}

int main(void) {
    for (const struct tokens_set *const *at = sets; *at; at++) {
        const struct tokens_set *set = *at;
        size_t before = wrong, i, j;
        for (i = 0; i < set->n_encode; i++) {
            const struct encode_case *c = &set->encode[i];
            size_t room = ROOM / sizeof *ids;
            long n = encode(set->vocabulary, c->text, c->n_bytes, c->add_special,
                            c->parse_special, ids, room);
            int same = n >= 0 && (size_t)n == c->n_ids && !memcmp(ids, c->ids, c->n_ids * sizeof *ids);
            if (!judged(set->vocabulary, "encode", c->id, n, c->n_ids, same)) break;
        }
        for (j = 0; j < set->n_decode; j++) {
            const struct decode_case *c = &set->decode[j];
            long n = decode(set->vocabulary, c->ids, c->n_ids, c->remove_special,
                            c->unparse_special, text, ROOM);
            int same = n >= 0 && (size_t)n == c->n_bytes && !memcmp(text, c->text, c->n_bytes);
            if (!judged(set->vocabulary, "decode", c->id, n, c->n_bytes, same)) break;
        }
        if ((i && i < set->n_encode) || (j && j < set->n_decode))
            printf("%s: offered, and not for all cases\n", set->vocabulary), wrong++;
        not_offered += (!i && set->n_encode) + (!j && set->n_decode);
        printf("%-16s %zu wrong; %s, %s\n", set->vocabulary, wrong - before,
               i || !set->n_encode ? "encodes" : "encode not offered",
               j || !set->n_decode ? "decodes" : "decode not offered");
    }
    printf("%zu of %zu answers are wrong, %zu questions not offered\n", wrong, asked, not_offered);
    return wrong ? 1 : asked ? 0 : 3;
}
