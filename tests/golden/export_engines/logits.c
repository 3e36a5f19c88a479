/* Answers with the vectors' own values. With WRONG=1, the last logit is outside its bound. */
#include "logits.h"

#include <string.h>

int logits(const char *model, const int32_t *prompt, size_t n_prompt, const int32_t *greedy,
           size_t n_greedy, size_t n_vocab, float *out) {
    (void)greedy;
    for (const struct logits_set *const *set = sets; *set; set++) {
        size_t n = (n_prompt + n_greedy - 1) * n_vocab;
        if ((*set)->prompt != prompt || !strstr(model, (*set)->model)) continue;
        memcpy(out, (*set)->logits, n * sizeof *out);
        out[n - 1] += (float)(*set)->allowed * (WRONG ? 1.01f : 0.99f);
        return 1;
    }
    return 0;
}
