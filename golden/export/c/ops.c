/* Runs your `compute` on every case: cc -std=c99 *.c engine.c -lm && ./a.out
   Exit codes: 0 all are within their bounds; 1 some are not; 3 no operation is supported. */
#include "ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double element(const char *type, const void *data, size_t i) {
    float f;
    int32_t n;
    uint16_t h;
    if (!strcmp(type, "F32")) return memcpy(&f, (const char *)data + 4 * i, 4), f;
    if (!strcmp(type, "I32")) return memcpy(&n, (const char *)data + 4 * i, 4), n;
    memcpy(&h, (const char *)data + 2 * i, 2); /* F16 */
    int e = h >> 10 & 31, m = h & 1023;
    double v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h >> 15 ? -v : v;
}

static double wanted(const struct way *w, size_t i) {
    if (w->integers) return w->integers[i]; /* ?: would convert both to float */
    return w->expected[i];
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Writes the values to compare for the ids of a row: the values that they choose (ties, choice), or
   the sorted ids (rows). Returns 0 if an id of ties or choice is repeated or out of range. */
static int chosen(const struct output *o, const char *type, const void *of, size_t width, size_t row,
                  size_t count, const double *ids, double *out) {
    size_t length = (size_t)o->shape[o->n_dims - 1], n = !strcmp(o->judged, "rows") ? count : length;
    memcpy(out, ids, n * sizeof *out), qsort(out, n, sizeof *out, by_size);
    if (!strcmp(o->judged, "rows")) return 1;
    for (size_t i = 0; i < n; i++)
        if (out[i] < 0 || out[i] >= (double)width || (i && out[i] == out[i - 1])) return 0;
    for (size_t i = 0; i < n; i++) out[i] = element(type, of, row * width + (size_t)ids[i]);
    if (!strcmp(o->judged, "choice")) qsort(out, n, sizeof *out, by_size);
    return 1;
}

/* Returns 1 if all elements of `got` fit the way w. *at is the first one that does not. */
static int fits(const struct ops_case *c, const struct output *o, void *const *outputs, const void *got,
                const struct way *w, size_t *at) {
    if (!strcmp(o->judged, "value")) {
        for (*at = 0; *at < o->n; ++*at) {
            double g = element(o->type, got, *at), v = wanted(w, *at);
            double room = w->allowed ? w->allowed[*at] : w->exact;
            if (!(g == v || (isnan(g) && isnan(v)) || fabs(g - v) <= room)) return 0;
            if (isinf(v) && g != v) return 0;
        }
        return 1;
    }
    size_t length = (size_t)o->shape[o->n_dims - 1], width = 0;
    double *mine = malloc(4 * length * sizeof *mine), *side = mine + length;
    const void *of = NULL;
    const char *type = "";
    int well = mine != NULL;
    for (size_t k = 0; k < c->n_inputs; k++)
        if (!strcmp(c->inputs[k].name, o->of))
            of = c->inputs[k].data, type = c->inputs[k].type,
            width = (size_t)c->inputs[k].shape[c->inputs[k].n_dims - 1];
    for (size_t k = 0; k < c->n_outputs; k++)
        if (!strcmp(c->outputs[k].name, o->of)) of = outputs[k], type = c->outputs[k].type;
    for (size_t row = 0; well && row < o->n / length; row++) {
        double size = !strcmp(o->judged, "rows") ? element(type, of, row) : 0;
        size_t n = size < 0 ? 0 : size > (double)length ? length : (size_t)size, i;
        for (i = 0; i < length; i++)
            mine[i] = element(o->type, got, row * length + i), side[i] = wanted(w, row * length + i);
        well = chosen(o, type, of, width, row, n, mine, side + length) &&
               chosen(o, type, of, width, row, n, side, side + 2 * length);
        n = !strcmp(o->judged, "rows") ? n : length;
        for (i = 0; well && i < n; i++) {
            double g = side[length + i], v = side[2 * length + i];
            well = g == v || (isnan(g) && isnan(v));
        }
        *at = row * length;
    }
    free(mine);
    return well;
}

int main(void) {
    size_t wrong = 0, asked = 0, not_offered = 0;
    for (const struct ops_set *const *at = sets; *at; at++) {
        size_t of_op = 0, done = 0;
        for (; done < (*at)->n_cases; done++) {
            const struct ops_case *c = &(*at)->cases[done];
            void *room[8];
            int offered;
            for (size_t k = 0; k < c->n_outputs; k++) { /* fill with NaN or -1, so unwritten is wrong */
                if (!(room[k] = malloc(4 * c->outputs[k].n + 1))) return fputs("no memory\n", stderr), 2;
                memset(room[k], 0xff, 4 * c->outputs[k].n + 1);
            }
            offered = compute((*at)->op, c, room);
            for (size_t k = 0; k < c->n_outputs && offered; k++) {
                const struct output *o = &c->outputs[k];
                size_t place = 0, way = 0;
                while (way < o->n_ways && !fits(c, o, room, room[k], &o->ways[way], &place)) way++;
                asked++;
                if (way < o->n_ways) continue;
                fits(c, o, room, room[k], &o->ways[0], &place), of_op++;
                printf("%s %s: %s[%zu] is %.9g, expected %.9g (%s: %s)\n", (*at)->op, c->id, o->name, place,
                       element(o->type, room[k], place), wanted(&o->ways[0], place), o->judged,
                       o->ways[0].reason);
            }
            for (size_t k = 0; k < c->n_outputs; k++) free(room[k]);
            if (!offered) break;
        }
        if (done == 0) printf("%-28s not offered\n", (*at)->op), not_offered++;
        else if (done < (*at)->n_cases)
            printf("%-28s offered, and not for %s\n", (*at)->op, (*at)->cases[done].id), of_op++;
        else printf("%-28s %zu wrong in %zu cases\n", (*at)->op, of_op, done);
        wrong += of_op;
    }
    printf("%zu of %zu outputs are wrong, %zu operations not offered\n", wrong, asked, not_offered);
    return wrong ? 1 : asked ? 0 : 3;
}
