/* The table of driver functions: found by dlopen and dlsym, so that the library runs where there is no driver. */
#include "cuda/driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* One function of the table: its symbol, and where its address belongs. */
struct entry {
    const char *symbol;
    size_t offset;
};

static const struct entry entries[] = {
#define COLL_ENTRY(name, symbol, parameters) {symbol, offsetof(coll_cuda, name)},
    COLL_CUDA_FUNCTIONS(COLL_ENTRY)
#undef COLL_ENTRY
};

static int fill(coll_cuda *table, void *handle, const char *library, char *why, size_t room) {
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        void *address = dlsym(handle, entries[i].symbol);
        if (!address) {
            snprintf(why, room, "%s has no function %s", library, entries[i].symbol);
            return -1;
        }
        memcpy((char *)table + entries[i].offset, &address, sizeof address);
    }
    return 0;
}

int coll_cuda_open(coll_cuda *table, const char *library, char *why, size_t room) {
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        const char *error = dlerror();
        snprintf(why, room, "%s", error ? error : library);
        return -1;
    }
    if (fill(table, handle, library, why, room)) {
        return -1;
    }
    int code = table->init(0);
    if (code) {
        const char *text = NULL;
        table->error_text(code, &text);
        snprintf(why, room, "cuInit of %s: error %d (%s)", library, code, text ? text : "unknown");
        return -1;
    }
    return 0;
}
