/* Small matrices of weight formats, activations, and their products with the bounds to allow. */
#include <stddef.h>
#include <stdint.h>

struct dot_set {
    const char *type;          /* ggml's name, such as Q4_K */
    const char *vec_dot_type;  /* what ggml converts the activations to */
    size_t rows, columns, row_bytes, tokens;
    const uint8_t *weights;    /* (rows, row_bytes) */
    const float *activations;  /* (tokens, columns) */
    /* (tokens, rows) each: of an engine that converts activations as ggml does, or of one that does not */
    const float *expected, *allowed, *plain, *plain_allowed;
    const char *reason, *plain_reason;
};

extern const struct dot_set *const sets[]; /* NULL behind the last */

/* Yours: out is (tokens, rows). 0: this type is not offered. */
int dot(const char *type, const uint8_t *weights, size_t rows, size_t columns,
        const float *activations, size_t tokens, float *out);
