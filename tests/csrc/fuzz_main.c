/* A fuzzer guided by coverage, for compilers without libFuzzer: -fsanitize-coverage=trace-pc is enough, which GCC has.
 * This file is compiled without it, and without sanitizers.
 *
 *   DRIVER SECONDS SEED ARTIFACT [FILE...]
 *
 * Runs the files, then mutates them and whatever reached something new, for so many seconds. An input that crashes or
 * takes too long is left in ARTIFACT. */
#include "fuzz.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { LONGEST = 4096, MAP = 1 << 16, MOST = 1 << 14, PATIENCE = 20, FIRST = 64 };

typedef struct {
    uint8_t *data;
    size_t size;
} sample;

static sample corpus[MOST];
static int samples;
static _Alignas(8) uint8_t hits[MAP], seen[MAP]; /* calls of each edge in this run; magnitudes of them in all runs */
static uintptr_t before;
static uint64_t random_state;
static uint8_t current[LONGEST];
static size_t current_size;
static const char *artifact;

void __sanitizer_cov_trace_pc(void);
void __sanitizer_set_death_callback(void (*)(void));

void __sanitizer_cov_trace_pc(void) {
    uintptr_t here = (uintptr_t)__builtin_return_address(0);
    uint8_t *hit = &hits[(here ^ before >> 1 ^ before << 7) % MAP];
    *hit = (uint8_t)(*hit + (*hit < 255));
    before = here;
}

static void leave_artifact(void) {
    int file = open(artifact, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (file < 0 || write(file, current, current_size) != (ssize_t)current_size)
        perror(artifact);
}

static void stop(int signal_number) {
    static const char late[] = "fuzz: no end\n", aborted[] = "fuzz: abort\n";
    const char *text = signal_number == SIGPROF ? late : aborted;
    if (write(2, text, strlen(text)) > 0)
        leave_artifact();
    _exit(3);
}

static uint64_t chance(uint64_t n) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (random_state >> 16) % n;
}

/* Whether the run reached an edge, or a number of times there, that no run had. */
static int is_new(void) {
    int found = 0;
    for (size_t i = 0; i < MAP; i++) {
        if (i % 8 == 0 && !*(const uint64_t *)&hits[i]) {
            i += 7;
            continue;
        }
        unsigned n = hits[i], magnitude = n ? 1u << (31 - __builtin_clz(n)) : 0;
        found |= (magnitude & ~seen[i]) != 0;
        seen[i] |= (uint8_t)magnitude;
    }
    return found;
}

static void run_current(void) {
    memset(hits, 0, sizeof hits);
    before = 0;
    setitimer(ITIMER_PROF, &(struct itimerval){.it_value.tv_sec = PATIENCE}, NULL); /* whoever else loads the machine */
    uint8_t *copy = malloc(current_size + !current_size); /* of its exact size, so that reading past it is seen */
    memcpy(copy, current, current_size);
    LLVMFuzzerTestOneInput(copy, current_size);
    free(copy);
    if (is_new() && samples < MOST) {
        corpus[samples] = (sample){malloc(current_size + 1), current_size};
        memcpy(corpus[samples++].data, current, current_size);
    }
}

static void overwrite(size_t at, size_t bytes, uint64_t value) {
    if (at + bytes <= current_size)
        memcpy(current + at, &value, bytes);
}

static void insert(size_t at, const uint8_t *from, size_t bytes) {
    bytes = bytes < LONGEST - current_size ? bytes : LONGEST - current_size;
    memmove(current + at + bytes, current + at, current_size - at);
    memcpy(current + at, from, bytes);
    current_size += bytes;
}

static void mutate(void) {
    static const int64_t usual[] = {0, 1, -1, 2, 7, 8, 64, 127, 128, 255, 4096, 65535, INT32_MAX, INT32_MIN, INT64_MAX};
    size_t at = chance(current_size + 1), other_at;
    uint8_t noise[16];
    sample other = corpus[chance((uint64_t)samples)];
    switch (chance(6)) {
    case 0:
        overwrite(at, 1, chance(256));
        break;
    case 1:
        overwrite(at, (size_t)1 << chance(4), (uint64_t)usual[chance(sizeof usual / sizeof *usual)]);
        break;
    case 2:
        overwrite(at, 1, at < current_size ? current[at] ^ 1u << chance(8) : 0);
        break;
    case 3:
        for (size_t i = 0; i < sizeof noise; i++)
            noise[i] = (uint8_t)chance(256);
        insert(at, noise, 1 + chance(sizeof noise));
        break;
    case 4: /* take some away */
        other_at = at + chance(current_size - at + 1);
        memmove(current + at, current + other_at, current_size - other_at);
        current_size -= other_at - at;
        break;
    default: /* a part of another sample */
        other_at = chance(other.size + 1);
        insert(at, other.data + other_at, chance(other.size - other_at + 1));
    }
}

static void read_sample(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        exit(2);
    }
    current_size = fread(current, 1, LONGEST, file);
    fclose(file);
    run_current();
}

static void run_noise(size_t size) {
    for (current_size = 0; current_size < size; current_size++)
        current[current_size] = (uint8_t)chance(256);
    run_current();
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc < 4)
        return 2;
    double begin = now(), end = begin + atof(argv[1]);
    random_state = 0x9E3779B97F4A7C15u * ((uint64_t)atol(argv[2]) + 1);
    artifact = argv[3];
    __sanitizer_set_death_callback(leave_artifact);
    signal(SIGPROF, stop);
    signal(SIGABRT, stop);
    for (int i = 4; i < argc; i++)
        read_sample(argv[i]);
    for (int i = 0; i < FIRST; i++)
        run_noise((size_t)i * LONGEST / FIRST / 2);
    unsigned long runs = FIRST + (unsigned long)argc - 4;
    for (; now() < end; runs++) {
        sample s =
            corpus[chance(2) ? chance((uint64_t)samples) : (uint64_t)samples - 1 - chance((uint64_t)samples) / 8];
        memcpy(current, s.data, current_size = s.size);
        for (uint64_t n = 1 + chance(8); n > 0; n--)
            mutate();
        run_current();
    }
    int edges = 0;
    for (size_t i = 0; i < MAP; i++)
        edges += seen[i] != 0;
    for (int i = 0; i < samples; i++)
        free(corpus[i].data);
    printf("%lu inputs in %.1f s, %d of them new, %d edges: no crash\n", runs, now() - begin, samples, edges);
    return 0;
}
