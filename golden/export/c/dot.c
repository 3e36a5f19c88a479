/* Runs your `dot` on every matrix: cc -std=c99 *.c engine.c -lm && ./a.out
   Exit codes: 0 all are within their bounds; 1 some are not; 3 no type is supported. */
#include "dot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the largest error as a multiple of its bound: above 1 is wrong, and so is NaN. */
static double worst(const struct dot_set *set, const float *got, const float *want,
                    const float *allowed, size_t *at) {
    double most = 0;
    *at = 0;
    for (size_t i = 0; i < set->tokens * set->rows; i++) {
        double off = fabs((double)got[i] - want[i]), share = off == 0 ? 0 : off / allowed[i];
        if (!(share <= most)) most = isnan(share) ? INFINITY : share, *at = i;
    }
    return most;
}

int main(void) {
    size_t wrong = 0, asked = 0, not_offered = 0;
    for (const struct dot_set *const *at = sets; *at; at++) {
        const struct dot_set *set = *at;
        size_t n = set->tokens * set->rows, i, j;
        float *got = malloc(n * sizeof *got);
        if (!got) return fputs("no memory\n", stderr), 2;
        memset(got, 0xff, n * sizeof *got); /* NaN, so that elements that are not written count as wrong */
        if (!dot(set->type, set->weights, set->rows, set->columns, set->activations, set->tokens, got)) {
            printf("%-8s not offered\n", set->type), not_offered++;
        } else {
            double converted = worst(set, got, set->expected, set->allowed, &i);
            double plain = worst(set, got, set->plain, set->plain_allowed, &j);
            int is_plain = plain <= 1 || (converted > 1 && plain < converted);
            double share = is_plain ? plain : converted;
            if (is_plain) i = j;
            asked++;
            printf("%-8s %s: %.3g of its bound (activations %s)\n", set->type, share <= 1 ? "ok" : "WRONG",
                   share, is_plain ? "as they are" : set->vec_dot_type);
            if (share > 1) {
                printf("         token %zu, row %zu is %.9g, expected %.9g, allowed %.2g: %s\n",
                       i / set->rows, i % set->rows, got[i], (is_plain ? set->plain : set->expected)[i],
                       (is_plain ? set->plain_allowed : set->allowed)[i],
                       is_plain ? set->plain_reason : set->reason);
                wrong++;
            }
        }
        free(got);
    }
    printf("%zu of %zu products are wrong, %zu types not offered\n", wrong, asked, not_offered);
    return wrong ? 1 : asked ? 0 : 3;
}
