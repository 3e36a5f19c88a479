/* Operations at their edges: inputs, results and the bounds to allow. All shapes slowest first. */
#include <stddef.h>
#include <stdint.h>

struct input {
    const char *name, *type; /* F32; F16: uint16_t; I32, I64; blocks such as Q4_K: bytes */
    size_t n_dims, n;        /* n: elements, of blocks bytes */
    int64_t shape[4];        /* of blocks: the last is the bytes of a row */
    int64_t nb[4];           /* strides to lay the values out with, bytes, fastest first; 0: none */
    const void *data;        /* contiguous */
};

struct param {
    const char *name, *text; /* text: NULL for a number */
    double number;
};

struct way {                 /* one of an output's ways must fit all of its elements */
    const char *name, *reason;
    const float *expected;   /* of F32 and F16 */
    const int32_t *integers; /* of I32 */
    const double *allowed;   /* of each element; NULL: `exact` of all */
    double exact;
};

struct output {
    const char *name, *type; /* F32, F16 or I32 */
    const char *judged;      /* value; of ids: ties, choice, rows (README.md) */
    const char *of;          /* the input, of `rows` the output, that it is judged with, or NULL */
    size_t n_dims, n, n_ways;
    int64_t shape[4];
    const struct way *ways;
};

struct ops_case {
    const char *id;
    size_t n_inputs, n_params, n_outputs;
    const struct input *inputs;
    const struct param *params;
    const struct output *outputs;
};

struct ops_set {
    const char *op;
    size_t n_cases;
    const struct ops_case *cases;
};

extern const struct ops_set *const sets[]; /* NULL behind the last */

/* Yours: outputs[i] is room for c->outputs[i], in its type. 0: this operation is not offered. */
int compute(const char *op, const struct ops_case *c, void *const *outputs);
