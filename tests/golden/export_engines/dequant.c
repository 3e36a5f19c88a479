/* Answers with the vectors' own values. With WRONG=1, the last weight of each block is wrong. */
#include "dequant.h"

#include <string.h>

int decode(const char *type, const uint8_t *block, size_t n_weights, float *out) {
    for (const struct dequant_set *const *set = sets; *set; set++)
        for (size_t i = 0; !strcmp((*set)->type, type) && i < (*set)->n_cases; i++)
            if (!memcmp((*set)->cases[i].block, block, (*set)->n_bytes)) {
                memcpy(out, (*set)->cases[i].expected, n_weights * sizeof *out);
                uint32_t bits;
                memcpy(&bits, &out[n_weights - 1], sizeof bits);
                bits ^= WRONG * 0x80000000u; /* changes only the sign */
                if (out[n_weights - 1] == out[n_weights - 1]) memcpy(&out[n_weights - 1], &bits, sizeof bits);
                return 1;
            }
    return 0;
}
