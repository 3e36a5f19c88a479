/* Runs of small models: a prompt, the greedy tokens after it, and the logits of each token. */
#include <stddef.h>
#include <stdint.h>

struct logits_set {
    const char *model;      /* models/MODEL.gguf in the folder of this file */
    const char *sha256;     /* of that file */
    size_t n_prompt, n_greedy, n_vocab;
    const int32_t *prompt, *greedy;
    const float *logits;    /* (n_prompt + n_greedy - 1, n_vocab) */
    double allowed;         /* absolute error of every element */
    const char *reason;
};

extern const struct logits_set *const sets[]; /* ends with NULL */

/* You write this, with an F32 cache. Decode the prompt as one batch on an empty cache. Then decode
   each greedy token except the last as a batch of one token. Write a row of logits for every token.
   Return 0 if you do not support the model. */
int logits(const char *model, const int32_t *prompt, size_t n_prompt, const int32_t *greedy,
           size_t n_greedy, size_t n_vocab, float *out);
