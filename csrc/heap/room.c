/* The memory that this process may still take. The kernel does not refuse more than that: it kills processes.
 *
 * The machine has a limit, and so has each control group that contains the process: its own, and all above it. A
 * container may show its own group alone, as the root. */
#include "internal.h"

#include <stdio.h>
#include <string.h>

enum {
    SPARE = 16 << 20, /* bytes that are left to the rest of the program, and to what the kernel counts late */
    LONGEST = 4096,   /* characters of the path of a group */
};

/* The files of a group in one version of control groups. */
typedef struct {
    const char *root, *most, *used, *most_swap, *used_swap, *inactive, *active;
} version;

static const version V1 = {
    .root = "/sys/fs/cgroup/memory",
    .most = "memory.limit_in_bytes",
    .used = "memory.usage_in_bytes",
    .most_swap = "memory.memsw.limit_in_bytes", /* of memory and swap together */
    .used_swap = "memory.memsw.usage_in_bytes",
    .inactive = "total_inactive_file ",
    .active = "total_active_file ",
};
static const version V2 = {
    .root = "/sys/fs/cgroup",
    .most = "memory.max",
    .used = "memory.current",
    .most_swap = "memory.swap.max",
    .used_swap = "memory.swap.current",
    .inactive = "inactive_file ",
    .active = "active_file ",
};

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

/* a + b; SIZE_MAX is unlimited. */
static size_t sum(size_t a, size_t b) {
    return a < SIZE_MAX - b ? a + b : SIZE_MAX;
}

/* The number after `word` at the start of a line of a file ("": in the first line); `otherwise` if there is none. */
static size_t number_in(const char *folder, const char *file, const char *word, size_t otherwise) {
    char path[LONGEST + 128], line[128];
    size_t found = otherwise;
    snprintf(path, sizeof path, "%s/%s", folder, file);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, word, strlen(word))) {
            if (sscanf(line + strlen(word), "%zu", &found) != 1) /* "max" */
                found = otherwise;
            break;
        }
    if (f)
        fclose(f);
    return found;
}

/* What is left of a limit; SIZE_MAX if there is none, for which version 1 has a number that no machine reaches. */
static size_t left_of(const char *folder, const char *most, const char *used) {
    size_t limit = number_in(folder, most, "", SIZE_MAX);
    if (limit > SIZE_MAX / 4)
        return SIZE_MAX;
    size_t now = number_in(folder, used, "", 0);
    return limit > now ? limit - now : 0;
}

/* The room in one group. Its cache of files can be dropped; shared memory is not counted in that. */
static size_t room_in(const char *folder, const version *v, size_t swap) {
    size_t left = left_of(folder, v->most, v->used);
    if (left == SIZE_MAX)
        return SIZE_MAX;
    size_t left_swap = left_of(folder, v->most_swap, v->used_swap);
    size_t cache = number_in(folder, "memory.stat", v->inactive, 0) + number_in(folder, "memory.stat", v->active, 0);
    size_t room = sum(left, v == &V2 ? least(swap, left_swap) : swap);
    return sum(v == &V1 ? least(room, left_swap) : room, cache);
}

/* The room in the group at `path` below the root, and in all above it. Folders that do not exist have no limit. */
static size_t room_below(const version *v, const char *path, size_t swap) {
    char folder[LONGEST + 64];
    size_t room = SIZE_MAX, root = strlen(v->root);
    snprintf(folder, sizeof folder, "%s%s", v->root, path);
    for (char *end; (end = strrchr(folder + root, '/')); *end = 0)
        room = least(room, room_in(folder, v, swap));
    return least(room, room_in(folder, v, swap));
}

size_t coll_heap_room(void) {
    size_t swap = number_in("/proc", "meminfo", "SwapFree:", 0) << 10;
    size_t kib = number_in("/proc", "meminfo", "MemAvailable:", SIZE_MAX);
    size_t room = kib == SIZE_MAX ? SIZE_MAX : sum(kib << 10, swap);
    char line[LONGEST];
    FILE *f = fopen("/proc/self/cgroup", "re");
    while (f && fgets(line, sizeof line, f)) { /* number:controllers:path; version 2 names no controllers */
        char *kind = strchr(line, ':'), *path = kind ? strchr(kind + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = 0;
        path[strcspn(path, "\n")] = 0;
        if (!kind[1] || strstr(kind, "memory"))
            room = least(room, room_below(kind[1] ? &V1 : &V2, path, swap));
    }
    if (f)
        fclose(f);
    return room > SPARE ? room - SPARE : 0;
}
