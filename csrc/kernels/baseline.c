/* The loops for every machine; on Arm the compiler uses NEON. */
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif
#include "internal.h"

#define COLL_ISA baseline
#include "loops.h"
