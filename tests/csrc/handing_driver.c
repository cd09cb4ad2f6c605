/* node/hand.c with copies and folds whose speed this program sets: when they go past the cache, and when through it
 * again. */
#include "node/internal.h"

#include <stdio.h>
#include <time.h>

enum { BYTES = 32 << 10 };
static double speed; /* bytes per ns */
static int streamed;

static void spend(double ns) {
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    do
        clock_gettime(CLOCK_MONOTONIC, &b);
    while ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec) < ns);
}

void coll_copy(void *dst, const void *src, size_t nbytes) {
    (void)dst, (void)src;
    spend((double)nbytes / speed);
}

void coll_copy_stream(void *dst, const void *src, size_t nbytes) {
    (void)dst, (void)src, (void)nbytes;
    streamed++;
}

int coll_node_fold(coll_node_call *c, int sources, int q, size_t elements, int stream) {
    (void)sources;
    if (stream)
        streamed++;
    else
        spend((double)((size_t)(q - 1) * elements * c->message.itemsize) / speed);
    return COLL_OK;
}

static void hand_over(coll_node *n) {
    static char to[BYTES], from[BYTES];
    coll_node_hand_long(&n->handing, to, from, BYTES);
}

/* Store a result into this rank's array and another one's. */
static void store(coll_node *n) {
    coll_node_call c = {.node = n, .message = {.itemsize = 8}};
    n->limits.stream = SIZE_MAX;
    coll_node_fold_to_outputs(&c, 2, 2, BYTES / 8);
}

/* How many of so many go past the cache. */
static int past(void (*way)(coll_node *), coll_node *n, int times) {
    streamed = 0;
    for (int i = 0; i < times; i++)
        way(n);
    return streamed;
}

static void try(const char *name, void (*way)(coll_node *)) {
    coll_node n = {0};
    speed = 20;
    printf("%s fast %d\n", name, past(way, &n, 300));
    int alone = 0;
    for (int i = 0; i < 240; i++) {
        speed = i % 8 ? 20 : 1;
        alone += past(way, &n, 1);
    }
    printf("%s now and then %d\n", name, alone);
    speed = 1;
    printf("%s slow %d\n", name, past(way, &n, 100));
    printf("%s slow for long %d\n", name, past(way, &n, 1000));
    speed = 20;
    past(way, &n, 260);
    printf("%s fast again %d\n", name, past(way, &n, 300));
}

int main(void) {
    try("hand", hand_over);
    try("store", store);
}
