/* Answers with the vectors' own values. With WRONG=1, one element is outside both of its bounds. */
#include "dot.h"

#include <math.h>
#include <string.h>

int dot(const char *type, const uint8_t *weights, size_t rows, size_t columns,
        const float *activations, size_t tokens, float *out) {
    (void)weights, (void)columns, (void)activations;
    for (const struct dot_set *const *set = sets; *set; set++) {
        if (strcmp((*set)->type, type)) continue;
        size_t last = tokens * rows - 1;
        memcpy(out, (*set)->plain, tokens * rows * sizeof *out);
        if (WRONG) out[last] = NAN;
        else out[last] += (*set)->plain_allowed[last] * 0.5f;
        return 1;
    }
    return 0;
}
