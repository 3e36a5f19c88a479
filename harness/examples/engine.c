/* Weight decoders and products in Lockstep's protocol: F32, F16, Q4_0 and Q8_0, C11 without libraries.
 *
 *     cc -O2 -o engine-c engine.c -lm
 *     lockstep smoke -- ./engine-c
 *     lockstep check model.gguf --engine ./engine-c --suite dequant
 *
 * A question is one line of JSON, and then the bytes of its arrays. The keys have the order of
 * PROTOCOL.md, so this program finds them without a JSON library.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST = 1 << 20 };

typedef struct {
    const char *name;
    size_t weights, bytes; /* size of a block */
} kind;

static const kind kinds[] = {{"F32", 1, 4}, {"F16", 1, 2}, {"Q4_0", 32, 18}, {"Q8_0", 32, 34}};

static float half(const uint8_t *p) {
    uint16_t h = (uint16_t)(p[0] | p[1] << 8);
    int exponent = h >> 10 & 31, fraction = h & 1023;
    float value = exponent == 0  ? ldexpf((float)fraction, -24)
                : exponent < 31  ? ldexpf((float)(fraction + 1024), exponent - 25)
                : fraction == 0  ? INFINITY
                                 : NAN;
    return h >> 15 ? -value : value;
}

static void block(const kind *k, const uint8_t *p, float *out) {
    if (!strcmp(k->name, "F32")) {
        memcpy(out, p, 4);
    } else if (!strcmp(k->name, "F16")) {
        *out = half(p);
    } else if (!strcmp(k->name, "Q8_0")) {
        for (int i = 0; i < 32; i++) out[i] = half(p) * (float)(int8_t)p[2 + i];
    } else { /* Q4_0: the low nibbles come first */
        for (int i = 0; i < 16; i++) {
            out[i] = half(p) * (float)((p[2 + i] & 15) - 8);
            out[i + 16] = half(p) * (float)((p[2 + i] >> 4) - 8);
        }
    }
}

/* Returns the text or number after "key": in the line, or NULL. */
static const char *behind(const char *line, const char *key) {
    char pattern[64];
    snprintf(pattern, sizeof pattern, "\"%s\":", key);
    const char *found = strstr(line, pattern);
    return found ? found + strlen(pattern) : NULL;
}

static int is(const char *line, const char *key, const char *text) {
    const char *value = behind(line, key);
    size_t n = strlen(text);
    return value && value[0] == '"' && !strncmp(value + 1, text, n) && value[n + 1] == '"';
}

static size_t size_behind(const char *line, const char *key) {
    const char *value = behind(line, key);
    return value ? strtoull(value, NULL, 10) : 0;
}

static void answer(size_t id, const char *name, const char *shape, const float *values, size_t n) {
    printf("{\"id\":%zu,\"answer\":{},\"arrays\":[[\"%s\",\"f32\",[%s]]],\"bytes\":%zu}\n", id, name,
           shape, 4 * n);
    fwrite(values, 4, n, stdout);
}

static void compute(size_t id, const char *line, const uint8_t *payload) {
    const kind *k = NULL;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (is(line, "type", kinds[i].name)) k = &kinds[i];
    if (!k) {
        printf("{\"id\":%zu,\"unsupported\":\"a type that is not decoded here\"}\n", id);
        return;
    }
    char shape[64];
    size_t bytes = strtoull(strstr(line, "[[\"raw\",\"u8\",[") + 14, NULL, 10);
    size_t n = bytes / k->bytes * k->weights;
    float *weights = malloc(4 * n + 1);
    for (size_t i = 0; i < n / k->weights; i++)
        block(k, payload + i * k->bytes, weights + i * k->weights);
    if (is(line, "ask", "dequantize")) {
        snprintf(shape, sizeof shape, "%zu", n);
        answer(id, "weights", shape, weights, n);
    } else { /* multiply: x is (tokens, columns), the product (tokens, rows) */
        const char *x_shape = strstr(line, "[\"x\",\"f32\",[") + 12;
        char *end;
        size_t tokens = strtoull(x_shape, &end, 10), columns = strtoull(end + 1, NULL, 10);
        size_t rows = columns ? n / columns : 0;
        const float *x = (const float *)(const void *)(payload + bytes);
        float *product = malloc(4 * tokens * rows + 1), *copy = malloc(4 * tokens * columns + 1);
        memcpy(copy, x, 4 * tokens * columns); /* x may be unaligned */
        for (size_t t = 0; t < tokens; t++)
            for (size_t r = 0; r < rows; r++) {
                double sum = 0;
                for (size_t c = 0; c < columns; c++)
                    sum += (double)copy[t * columns + c] * weights[r * columns + c];
                product[t * rows + r] = (float)sum;
            }
        snprintf(shape, sizeof shape, "%zu,%zu", tokens, rows);
        answer(id, "product", shape, product, tokens * rows);
        free(product);
        free(copy);
    }
    free(weights);
}

int main(void) {
    static char line[LONGEST];
    while (fgets(line, LONGEST, stdin)) {
        size_t id = size_behind(line, "id"), bytes = size_behind(line, "bytes");
        uint8_t *payload = malloc(bytes + 1);
        if (!payload || fread(payload, 1, bytes, stdin) != bytes) return 1;
        if (is(line, "ask", "start"))
            printf("{\"id\":%zu,\"answer\":{\"protocol\":1,\"engine\":\"example in C\",\"version\":"
                   "\"1\",\"can\":[\"dequantize\",\"multiply\"]}}\n", id);
        else
            compute(id, line, payload);
        fflush(stdout);
        free(payload);
    }
    return 0;
}
