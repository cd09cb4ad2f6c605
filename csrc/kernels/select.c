/* The look-up functions of kernels.h, and the choice of the instruction set. */
#include <stdlib.h>
#include <string.h>
#include "internal.h"

static const struct coll_isa *const isas[] = {
#ifdef __x86_64__
    &coll_isa_avx512, &coll_isa_avx2,
#endif
    &coll_isa_baseline};

enum { NISAS = sizeof isas / sizeof *isas };

static _Atomic(const struct coll_isa *) chosen = &coll_isa_baseline;

/* About the part of a shared cache that a core can hope to use. The system's own figures do not help: virtual machines
 * report the caches of the whole host. */
_Atomic size_t coll_stream_from = (size_t)16 << 20;

static int runs(const struct coll_isa *isa) {
#ifdef __x86_64__
    int f16c = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
    if (isa == &coll_isa_avx2)
        return f16c;
    if (isa == &coll_isa_avx512)
        return f16c && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
    return isa == &coll_isa_baseline;
}

const struct coll_isa *coll_current_isa(void) {
    return atomic_load_explicit(&chosen, memory_order_acquire);
}

const char *coll_isa(void) {
    return coll_current_isa()->name;
}

int coll_isa_supported(const char *name) {
    for (int i = 0; i < NISAS; i++)
        if (!strcmp(isas[i]->name, name))
            return runs(isas[i]);
    return 0;
}

int coll_isa_select(const char *name) {
    if (!name)
        name = getenv("COLLECTIVES_ISA");
    for (int i = 0; i < NISAS; i++)
        if (runs(isas[i]) && (!name || !*name || !strcmp(isas[i]->name, name))) {
            atomic_store_explicit(&chosen, isas[i], memory_order_release);
            return 0;
        }
    return -1;
}

size_t coll_stream_bytes(size_t nbytes) {
    return atomic_exchange(&coll_stream_from, nbytes);
}

/* A wrong COLLECTIVES_ISA is reported by the caller of coll_isa_select(NULL); until then the baseline is used. */
__attribute__((constructor)) static void choose_at_load(void) {
#ifdef __x86_64__
    __builtin_cpu_init();
#endif
    coll_isa_select(NULL);
}

int coll_ndtypes(void) {
    return COLL_NTYPES_IN_ALL;
}

int coll_nops(void) {
    return COLL_NOPS;
}

const char *coll_dtype_name(coll_dtype t) {
#define COLL_TYPE_STRING(name, element, accumulator, access, class, twin) #name,
    static const char *const names[] = {COLL_TYPES(COLL_TYPE_STRING) "exact32", "exact64"};
    return t >= 0 && t < COLL_NTYPES_IN_ALL ? names[t] : NULL;
}

const char *coll_op_name(coll_op op) {
#define COLL_OP_STRING(op) #op,
    static const char *const names[] = {COLL_OPS(COLL_OP_STRING)};
    return op >= 0 && op < COLL_NOPS ? names[op] : NULL;
}

size_t coll_dtype_size(coll_dtype t) {
#define COLL_TYPE_SIZE(name, element, accumulator, access, class, twin) sizeof(coll_elem_##name),
    static const size_t sizes[] = {COLL_TYPES(COLL_TYPE_SIZE) sizeof(coll_exact32_t), sizeof(coll_exact64_t)};
    return t >= 0 && t < COLL_NTYPES_IN_ALL ? sizes[t] : 0;
}

static const struct coll_entry *find(coll_dtype t, coll_op op) {
    static const struct coll_entry none;
    if (op == COLL_OP_reproducible_sum) {
        const struct coll_entry *exact = coll_exact_entry(t);
        return exact ? exact : &none;
    }
    if (t < 0 || t >= COLL_NTYPES || op < 0 || op >= COLL_NOPS)
        return &none;
    const struct coll_isa *isa = coll_current_isa();
    while (!isa->entry[t][op].reduce2 && isa->next)
        isa = isa->next;
    return &isa->entry[t][op];
}

coll_reduce2_fn coll_reduce2(coll_dtype t, coll_op op) {
    return find(t, op)->reduce2;
}

coll_reducep_fn coll_reducep(coll_dtype t, coll_op op) {
    return find(t, op)->reducep;
}

coll_reduce2_fn coll_reduce2_stream(coll_dtype t, coll_op op) {
    return find(t, op)->reduce2_stream;
}

coll_reducep_fn coll_reducep_stream(coll_dtype t, coll_op op) {
    return find(t, op)->reducep_stream;
}

coll_scale_fn coll_scale(coll_dtype t) {
    return t >= 0 && t < COLL_NTYPES ? coll_current_isa()->scale[t] : NULL;
}

coll_widen_fn coll_widen(coll_dtype t) {
    return t == COLL_TYPE_float16 || t == COLL_TYPE_bfloat16 ? coll_current_isa()->widen[t - COLL_TYPE_float16] : NULL;
}

coll_narrow_fn coll_narrow(coll_dtype t) {
    return t == COLL_TYPE_float16 || t == COLL_TYPE_bfloat16 ? coll_current_isa()->narrow[t - COLL_TYPE_float16] : NULL;
}

void coll_copy_stream(void *dst, const void *src, size_t nbytes) {
    coll_run_copy(coll_current_isa()->stream, dst, src, nbytes);
}

/* A load waits for an earlier store with the same low 12 bits of the address: copy in the direction that avoids it. */
void coll_copy(void *dst, const void *src, size_t nbytes) {
    const struct coll_isa *isa = coll_current_isa();
    if (nbytes < COLL_COPY_FROM)
        memcpy(dst, src, nbytes);
    else
        (((uintptr_t)dst - (uintptr_t)src) % 4096 < 2048 ? isa->copy_down : isa->copy_up)(dst, src, nbytes);
}
