/* Answers with the vectors' own verdicts. With WRONG=1, it accepts all files. */
#include "files.h"

#include <string.h>

int accepts(const uint8_t *bytes, size_t n_bytes) {
    for (const struct files_set *const *set = sets; *set && !WRONG; set++)
        if ((*set)->n_bytes == n_bytes && !memcmp((*set)->bytes, bytes, n_bytes))
            return (*set)->verdict == VALID;
    return 1;
}
