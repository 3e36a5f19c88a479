/* GGUF files with one named fault each, or with something unusual that is none. */
#include <stddef.h>
#include <stdint.h>

enum verdict { INVALID, VALID, EITHER }; /* EITHER: implementations differ, and each may */

struct files_set {
    const char *fault;
    enum verdict verdict;
    const char *why;
    size_t n_bytes;
    const uint8_t *bytes;
};

extern const struct files_set *const sets[]; /* NULL behind the last */

/* Yours: is it a GGUF file? 1: it is accepted, 0: it is refused. No file may end the process. */
int accepts(const uint8_t *bytes, size_t n_bytes);
