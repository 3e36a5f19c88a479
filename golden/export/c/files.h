/* GGUF files with one fault each, or with an unusual but valid feature. */
#include <stddef.h>
#include <stdint.h>

enum verdict { INVALID, VALID, EITHER }; /* EITHER: both answers are right */

struct files_set {
    const char *fault;
    enum verdict verdict;
    const char *why;
    size_t n_bytes;
    const uint8_t *bytes;
};

extern const struct files_set *const sets[]; /* ends with NULL */

/* You write this: return 1 if the file is valid, 0 if not. No file may crash the process. */
int accepts(const uint8_t *bytes, size_t n_bytes);
