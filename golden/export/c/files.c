/* Gives your parser every file: cc -std=c99 *.c engine.c -lm && ./a.out
   Exit codes: 0 all verdicts are right; 1 some are not. Limit its memory and time, and build it with
   sanitizers. If it crashes, the last name that it printed is the file that crashed it. */
#include "files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void) {
    size_t wrong = 0, asked = 0;
    for (const struct files_set *const *at = sets; *at; at++, asked++) {
        const struct files_set *set = *at;
        uint8_t *copy = malloc(set->n_bytes ? set->n_bytes : 1); /* of exact size, so that sanitizers see reads past its end */
        if (!copy) return fputs("no memory\n", stderr), 2;
        memcpy(copy, set->bytes, set->n_bytes);
        printf("%s", set->fault), fflush(stdout);
        int accepted = accepts(copy, set->n_bytes) != 0;
        int right = set->verdict == EITHER || accepted == (set->verdict == VALID);
        if (right) printf(": ok\n");
        else printf(": WRONG: %s, and it is %s: %s\n", accepted ? "accepted" : "refused",
                    set->verdict == VALID ? "valid" : "invalid", set->why);
        wrong += !right;
        free(copy);
    }
    printf("%zu of %zu verdicts are wrong\n", wrong, asked);
    return wrong ? 1 : asked ? 0 : 3;
}
