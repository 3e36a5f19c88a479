/* Blocks of weight formats, and the float32 values that they decode to. */
#include <stddef.h>
#include <stdint.h>

struct dequant_case {
    const char *id;          /* describes the block */
    const uint8_t *block;
    const float *expected;   /* must be equal in every bit (-0.0 is not 0.0), but all NaNs are equal */
};

struct dequant_set {
    const char *type;        /* ggml's name, such as Q4_K */
    size_t n_bytes, n_weights; /* size of a block */
    size_t n_cases;
    const struct dequant_case *cases;
};

extern const struct dequant_set *const sets[]; /* ends with NULL */

/* You write this: decode one block of n_weights weights. Return 0 if you do not support the type. */
int decode(const char *type, const uint8_t *block, size_t n_weights, float *out);
