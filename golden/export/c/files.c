/* Shows your parser every file: cc -std=c99 *.c engine.c -lm && ./a.out
   Exit code: 0 all verdicts are right, 1 some are not. Run it under a limit of memory and of time,
   and with sanitizers: the file in work is the last that is named where it ends too early. */
#include "files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void) {
    size_t wrong = 0, asked = 0;
    for (const struct files_set *const *at = sets; *at; at++, asked++) {
        const struct files_set *set = *at;
        uint8_t *copy = malloc(set->n_bytes ? set->n_bytes : 1); /* of its own size, for sanitizers */
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
