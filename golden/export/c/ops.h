/* Edge cases of operations: inputs, outputs and error bounds. Shapes start with the slowest
   dimension. */
#include <stddef.h>
#include <stdint.h>

struct input {
    const char *name, *type; /* F32, F16 (as uint16_t), I32, I64, or blocks such as Q4_K (as bytes) */
    size_t n_dims, n;        /* n: number of elements, or of bytes for blocks */
    int64_t shape[4];        /* the last dimension of blocks is the number of bytes in a row */
    int64_t nb[4];           /* strides in bytes that the layout must have, fastest first; 0: any */
    const void *data;        /* the values, contiguous */
};

struct param {
    const char *name, *text; /* text is NULL if the value is a number */
    double number;
};

struct way {                 /* all elements of an output must fit the same way */
    const char *name, *reason;
    const float *expected;   /* for F32 and F16 */
    const int32_t *integers; /* for I32 */
    const double *allowed;   /* bound of each element; NULL: `exact` is the bound of all */
    double exact;
};

struct output {
    const char *name, *type; /* F32, F16 or I32 */
    const char *judged;      /* value, ties, choice or rows (README.md); the last three are for ids */
    const char *of;          /* the input (for `rows` the output) that the ids refer to, or NULL */
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

extern const struct ops_set *const sets[]; /* ends with NULL */

/* You write this: outputs[i] is a buffer for c->outputs[i], in its type. Return 0 if you do not
   support the operation. */
int compute(const char *op, const struct ops_case *c, void *const *outputs);
