/* node/hand.c with copies whose speed this program sets: when it goes past the cache, and when through it again. */
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
    (void)c, (void)sources, (void)q, (void)elements, (void)stream;
    return COLL_OK;
}

/* How many of so many copies go past the cache. */
static int past(struct handing *h, int copies) {
    static char to[BYTES], from[BYTES];
    streamed = 0;
    for (int i = 0; i < copies; i++)
        coll_node_hand_long(h, to, from, BYTES);
    return streamed;
}

int main(void) {
    struct handing h = {0};
    speed = 20;
    printf("fast %d\n", past(&h, 300));
    int alone = 0;
    for (int i = 0; i < 240; i++) {
        speed = i % 8 ? 20 : 1;
        alone += past(&h, 1);
    }
    printf("now and then %d\n", alone);
    speed = 1;
    printf("slow %d\n", past(&h, 100));
    printf("slow for long %d\n", past(&h, 1000));
    speed = 20;
    past(&h, 260);
    printf("fast again %d\n", past(&h, 300));
}
