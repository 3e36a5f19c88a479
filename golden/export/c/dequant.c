/* Runs your `decode` on every block: cc -std=c99 *.c engine.c -lm && ./a.out
   Exit codes: 0 all bits are right; 1 some are wrong; 3 no type is supported. */
#include "dequant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN 20 /* wrong blocks that are printed */

static int same(float a, float b) { return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b)); }

int main(void) {
    size_t wrong = 0, asked = 0, not_offered = 0;
    for (const struct dequant_set *const *at = sets; *at; at++) {
        const struct dequant_set *set = *at;
        float *got = malloc(set->n_weights * sizeof *got);
        size_t of_set = 0, done = 0;
        if (!got) return fputs("no memory\n", stderr), 2;
        for (; done < set->n_cases; done++) {
            const struct dequant_case *c = &set->cases[done];
            memset(got, 0x5a, set->n_weights * sizeof *got); /* elements that are not written count as wrong */
            if (!decode(set->type, c->block, set->n_weights, got)) break;
            for (size_t i = 0; i < set->n_weights; i++) {
                if (same(got[i], c->expected[i])) continue;
                if (wrong + of_set++ < SHOWN)
                    printf("%s %s: weight %zu is %.9g, expected %.9g\n", set->type, c->id, i, got[i],
                           c->expected[i]);
                break;
            }
        }
        free(got);
        if (done == set->n_cases) printf("%-8s %zu of %zu blocks are wrong\n", set->type, of_set, done);
        else if (done == 0) printf("%-8s not offered\n", set->type), not_offered++;
        else printf("%-8s offered, and not for block %s\n", set->type, set->cases[done].id), of_set++;
        wrong += of_set, asked += done;
    }
    printf("%zu of %zu blocks are wrong, %zu types not offered\n", wrong, asked, not_offered);
    return wrong ? 1 : asked ? 0 : 3;
}
