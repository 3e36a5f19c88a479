/* Blocks of weight formats, and the float32 numbers that they decode to. */
#include <stddef.h>
#include <stdint.h>

struct dequant_case {
    const char *id;          /* says what is in the block */
    const uint8_t *block;
    const float *expected;   /* compare bits: -0.0 is not 0.0; any NaN is any NaN */
};

struct dequant_set {
    const char *type;        /* ggml's name, such as Q4_K */
    size_t n_bytes, n_weights; /* of a block */
    size_t n_cases;
    const struct dequant_case *cases;
};

extern const struct dequant_set *const sets[]; /* NULL behind the last */

/* Yours: decode one block of n_weights weights. 0: this type is not offered. */
int decode(const char *type, const uint8_t *block, size_t n_weights, float *out);
