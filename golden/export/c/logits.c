/* Runs your `logits` on every model: cc -std=c99 *.c engine.c -lm && ./a.out
   Exit codes: 0 all are within their bounds; 1 some are not; 3 no model is supported. */
#include "logits.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void) {
    size_t wrong = 0, asked = 0, not_offered = 0;
    for (const struct logits_set *const *at = sets; *at; at++) {
        const struct logits_set *set = *at;
        size_t n = (set->n_prompt + set->n_greedy - 1) * set->n_vocab, off = 0, first = 0;
        double worst = 0;
        float *got = malloc(n * sizeof *got);
        char path[256];
        if (!got) return fputs("no memory\n", stderr), 2;
        memset(got, 0xff, n * sizeof *got); /* NaN, so that elements that are not written count as wrong */
        snprintf(path, sizeof path, "models/%s.gguf", set->model);
        if (!logits(path, set->prompt, set->n_prompt, set->greedy, set->n_greedy, set->n_vocab, got)) {
            printf("%-12s not offered\n", set->model), not_offered++;
            free(got);
            continue;
        }
        for (size_t i = 0; i < n; i++) {
            double error = fabs((double)got[i] - set->logits[i]);
            if (!(error <= set->allowed) && !off++) first = i;
            if (!(error <= worst)) worst = error;
        }
        asked++, wrong += off != 0;
        printf("%-12s %s: %.3g off at most, allowed %.3g\n", set->model, off ? "WRONG" : "ok", worst,
               set->allowed);
        if (off)
            printf("             %zu of %zu logits; the first of token %zu, id %zu: %.9g, expected %.9g\n"
                   "             allowed because: %s\n", off, n, first / set->n_vocab,
                   first % set->n_vocab, got[first], set->logits[first], set->reason);
        free(got);
    }
    printf("%zu of %zu models are wrong, %zu not offered\n", wrong, asked, not_offered);
    return wrong ? 1 : asked ? 0 : 3;
}
