/* Small matrices of weight formats, activations, and their products with error bounds. */
#include <stddef.h>
#include <stdint.h>

struct dot_set {
    const char *type;          /* ggml's name, such as Q4_K */
    const char *vec_dot_type;  /* the type that ggml converts the activations to */
    size_t rows, columns, row_bytes, tokens;
    const uint8_t *weights;    /* (rows, row_bytes) */
    const float *activations;  /* (tokens, columns) */
    /* All are (tokens, rows). The first two are for engines that convert the activations as ggml does,
       and the plain ones are for engines that do not convert them. */
    const float *expected, *allowed, *plain, *plain_allowed;
    const char *reason, *plain_reason;
};

extern const struct dot_set *const sets[]; /* ends with NULL */

/* You write this: out is (tokens, rows). Return 0 if you do not support the type. */
int dot(const char *type, const uint8_t *weights, size_t rows, size_t columns,
        const float *activations, size_t tokens, float *out);
