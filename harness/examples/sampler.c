/* A sampler in Lockstep's protocol, C11 without libraries: temperature, cuts, penalties, selection.
 *
 *     cc -O2 -o sampler sampler.c -lm
 *     lockstep check model.gguf --suite samplers --engine ./sampler
 * Parameters follow the name of their sampler, so this program finds them without a JSON library. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 1 << 18, LONGEST = 1 << 20, STAGES = 64 };

typedef struct { int id; double logit, p; } candidate;

static struct { int n; candidate at[N]; } row;
static int told[N], n_told, counts[N];

static int falling(const void *a, const void *b) { /* ties: the smaller id first */
    const candidate *x = a, *y = b;
    return x->logit != y->logit ? (x->logit < y->logit) - (x->logit > y->logit) : x->id - y->id;
}
static void sort(void) { qsort(row.at, (size_t)row.n, sizeof *row.at, falling); }

static int largest(void) {
    int best = 0;
    for (int i = 1; i < row.n; i++)
        if (row.at[i].logit > row.at[best].logit) best = i;
    return best;
}

static void softmax(void) {
    double most = row.at[largest()].logit, total = 0;
    for (int i = 0; i < row.n; i++) total += row.at[i].p = exp(row.at[i].logit - most);
    for (int i = 0; i < row.n; i++) row.at[i].p /= total;
}
static int reach(double goal) { /* returns the first index at which the sum of p reaches the goal */
    int i = 0;
    for (double sum = row.at[0].p; sum < goal && i < row.n - 1;) sum += row.at[++i].p;
    return i;
}

static double number(const char *stage, const char *name) {
    char key[64];
    int n = snprintf(key, sizeof key, "\"%s\":", name);
    return (stage = strstr(stage, key)) ? strtod(stage + n, NULL) : 0;
}

static int is(const char *stage, const char *name) {
    return !strncmp(stage, name, strlen(name)) && stage[strlen(name)] == '"';
}

static void cut(int n, int min_keep) {
    row.n = fmin(row.n, fmax(n, min_keep));
}

static void penalise(const char *stage) {
    int last = (int)number(stage, "penalty_last_n"), first = n_told > last ? n_told - last : 0;
    double repeat = number(stage, "penalty_repeat"), freq = number(stage, "penalty_freq");
    memset(counts, 0, sizeof counts);
    for (int i = first; last > 0 && i < n_told; i++) counts[told[i]]++;
    for (int i = 0; i < row.n; i++) {
        double *x = &row.at[i].logit, n = counts[row.at[i].id];
        if (n == 0) continue;
        *x = *x <= 0 ? *x * repeat : *x / repeat;
        *x -= n * freq + number(stage, "penalty_present");
    }
}

/* Changes the row. Returns the selected id, -1 for none, or -2 for an unknown sampler. */
static int apply(const char *stage, double draw) {
    double p = number(stage, "p"), t = number(stage, "t");
    int k = (int)number(stage, "k"), min_keep = (int)number(stage, "min_keep"), best = largest();
    if (is(stage, "greedy")) return row.at[best].id;
    if (is(stage, "dist")) return softmax(), row.at[reach(draw)].id;
    if (is(stage, "top_k") && k > 0) sort(), cut(k, 0);
    else if (is(stage, "top_p") && p < 1) sort(), softmax(), cut(reach(p) + 1, min_keep);
    else if (is(stage, "min_p")) {
        int n = 1;
        if (p > 0) sort();
        while (n < row.n && (p <= 0 || row.at[n].logit >= row.at[0].logit + log(p))) n++;
        cut(n, min_keep);
    } else if (is(stage, "temp")) {
        for (int i = 0; i < row.n; i++)
            if (t > 0) row.at[i].logit /= t;
            else if (i != best) row.at[i].logit = -INFINITY;
    } else if (is(stage, "penalties")) penalise(stage);
    else if (!is(stage, "top_k") && !is(stage, "top_p")) return -2;
    return -1;
}

static const char *tell(const char *at) { /* reads the tokens of the next list, and returns its end */
    for (at = strchr(at, '[') + 1; *at != ']'; at += *at == ',')
        told[n_told++ % N] = (int)strtol(at, (char **)&at, 10);
    return at;
}

static void sample(size_t id, const char *line, const unsigned char *payload) {
    const char *stages[STAGES], *end = strstr(line, "\"accepted\":");
    const char *shape = strstr(line, "f32\",[");
    size_t rows = strtoull(shape + 6, (char **)&shape, 10), width = strtoull(shape + 1, NULL, 10);
    size_t n = 0, total = 0;
    for (const char *at = line; (at = strstr(at, "{\"sampler\":\"")) && at < end && n < STAGES;)
        stages[n++] = at += 12;
    size_t lists = rows * n, most = lists * width + 1;
    int *sizes = malloc(8 * lists + 1), *selected = sizes + lists, *ids = malloc(4 * most);
    float *logits = malloc(4 * most), *p = malloc(4 * most), logit;
    end = strchr(end, '[') + 1, n_told = 0;
    for (size_t list = 0; list < lists; list++) {
        if (list % n == 0) { /* a new row */
            end = tell(end);
            for (size_t i = 0; i < width; i++) {
                memcpy(&logit, payload + 4 * (list / n * width + i), 4);
                row.at[i] = (candidate){(int)i, logit, 0};
            }
            row.n = (int)width;
        }
        double draw;
        memcpy(&draw, payload + 4 * rows * width + 8 * list, 8);
        if ((selected[list] = apply(stages[list % n], draw)) == -2) {
            printf("{\"id\":%zu,\"unsupported\":\"a sampler that is not here\"}\n", id);
            return free(sizes), free(ids), free(logits), free(p);
        }
        softmax();
        sizes[list] = row.n;
        for (candidate *c = row.at; c < row.at + row.n; c++, total++)
            ids[total] = c->id, logits[total] = (float)c->logit, p[total] = (float)c->p;
    }
    printf("{\"id\":%zu,\"answer\":{},\"arrays\":[[\"sizes\",\"i32\",[%zu,%zu]],"
           "[\"selected\",\"i32\",[%zu,%zu]],[\"ids\",\"i32\",[%zu]],[\"logits\",\"f32\",[%zu]],"
           "[\"p\",\"f32\",[%zu]]]}\n", id, rows, n, rows, n, total, total, total);
    fwrite(sizes, 8, lists, stdout); /* also writes selected, which follows in memory */
    fwrite(ids, 4, total, stdout), fwrite(logits, 4, total, stdout), fwrite(p, 4, total, stdout);
    free(sizes), free(ids), free(logits), free(p);
}

int main(void) {
    static char line[LONGEST];
    while (fgets(line, LONGEST, stdin)) {
        size_t id = (size_t)number(line, "id"), bytes = (size_t)number(line, "bytes");
        unsigned char *payload = malloc(bytes + 1);
        if (!payload || fread(payload, 1, bytes, stdin) != bytes) return 1;
        if (strstr(line, "\"ask\":\"start\""))
            printf("{\"id\":%zu,\"answer\":{\"protocol\":1,\"engine\":\"sampler in C\",\"version\":"
                   "\"1\",\"can\":[\"sample\"]}}\n", id);
        else
            sample(id, line, payload);
        fflush(stdout), free(payload);
    }
    return 0;
}
