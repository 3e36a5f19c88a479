/* Runs of small models: a prompt, the greedy tokens behind it, and the logits of each. */
#include <stddef.h>
#include <stdint.h>

struct logits_set {
    const char *model;      /* models/MODEL.gguf beside this file */
    const char *sha256;     /* of that file */
    size_t n_prompt, n_greedy, n_vocab;
    const int32_t *prompt, *greedy;
    const float *logits;    /* (n_prompt + n_greedy - 1, n_vocab) */
    double allowed;         /* absolute, of every element */
    const char *reason;
};

extern const struct logits_set *const sets[]; /* NULL behind the last */

/* Yours, with an F32 cache: decode the prompt as one batch on an empty cache, then each greedy token
   but the last as a batch of its own; a row of logits for every token. 0: the model is not offered. */
int logits(const char *model, const int32_t *prompt, size_t n_prompt, const int32_t *greedy,
           size_t n_greedy, size_t n_vocab, float *out);
