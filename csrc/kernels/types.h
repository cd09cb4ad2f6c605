/* The list of element types. The number of a type is its place in the list. */
#ifndef COLL_TYPES_H
#define COLL_TYPES_H

#include <stdint.h>

typedef struct {
    float re, im;
} coll_complex64_t;
typedef struct {
    double re, im;
} coll_complex128_t;

/* MPI's pair types, with C's padding. */
typedef struct {
    float value;
    int index;
} coll_float_int_t;
typedef struct {
    double value;
    int index;
} coll_double_int_t;
typedef struct {
    long value;
    int index;
} coll_long_int_t;
typedef struct {
    int value;
    int index;
} coll_two_int_t;
typedef struct {
    short value;
    int index;
} coll_short_int_t;
typedef struct {
    long double value;
    int index;
} coll_long_double_int_t;

/* X(name, element, accumulator, access, class, twin).
 * access: PLAIN if the accumulator is the element, HALF if elements are converted (half.h).
 * class: says which ops the type has (ops.h).
 * twin: the type whose loops serve where signedness does not matter: sums of int32 and uint32 have the same bits.
 * The last type is not in the list for CUDA devices (csrc/cuda), which have no long double. */
#define COLL_DEVICE_TYPES(X)                                                                                           \
    X(bool, uint8_t, uint8_t, PLAIN, BOOL, bool)                                                                       \
    X(int8, int8_t, int8_t, PLAIN, SIGNED, uint8)                                                                      \
    X(int16, int16_t, int16_t, PLAIN, SIGNED, uint16)                                                                  \
    X(int32, int32_t, int32_t, PLAIN, SIGNED, uint32)                                                                  \
    X(int64, int64_t, int64_t, PLAIN, SIGNED, uint64)                                                                  \
    X(uint8, uint8_t, uint8_t, PLAIN, UNSIGNED, uint8)                                                                 \
    X(uint16, uint16_t, uint16_t, PLAIN, UNSIGNED, uint16)                                                             \
    X(uint32, uint32_t, uint32_t, PLAIN, UNSIGNED, uint32)                                                             \
    X(uint64, uint64_t, uint64_t, PLAIN, UNSIGNED, uint64)                                                             \
    X(float16, uint16_t, float, HALF, FLOAT, float16)                                                                  \
    X(bfloat16, uint16_t, float, HALF, FLOAT, bfloat16)                                                                \
    X(float32, float, float, PLAIN, FLOAT, float32)                                                                    \
    X(float64, double, double, PLAIN, FLOAT, float64)                                                                  \
    X(complex64, coll_complex64_t, coll_complex64_t, PLAIN, COMPLEX, complex64)                                        \
    X(complex128, coll_complex128_t, coll_complex128_t, PLAIN, COMPLEX, complex128)                                    \
    X(float_int, coll_float_int_t, coll_float_int_t, PLAIN, PAIR, float_int)                                           \
    X(double_int, coll_double_int_t, coll_double_int_t, PLAIN, PAIR, double_int)                                       \
    X(long_int, coll_long_int_t, coll_long_int_t, PLAIN, PAIR, long_int)                                               \
    X(two_int, coll_two_int_t, coll_two_int_t, PLAIN, PAIR, two_int)                                                   \
    X(short_int, coll_short_int_t, coll_short_int_t, PLAIN, PAIR, short_int)
#define COLL_TYPES(X)                                                                                                  \
    COLL_DEVICE_TYPES(X)                                                                                               \
    X(long_double_int, coll_long_double_int_t, coll_long_double_int_t, PLAIN, PAIR, long_double_int)

#define COLL_TYPE_NUMBER(name, element, accumulator, access, class, twin) COLL_TYPE_##name,
enum { COLL_TYPES(COLL_TYPE_NUMBER) COLL_NTYPES };
#undef COLL_TYPE_NUMBER

/* The accumulators of exact.h are not in the list, since they have no loops; their numbers follow those of the list. */
enum { COLL_TYPE_exact32 = COLL_NTYPES, COLL_TYPE_exact64, COLL_NTYPES_IN_ALL };

/* Elements may have any address. */
#define COLL_ANYWHERE __attribute__((aligned(1)))

#define COLL_TYPE_NAMES(name, element, accumulator, access, class, twin)                                               \
    typedef element COLL_ANYWHERE coll_elem_##name;                                                                    \
    typedef accumulator coll_acc_##name;
COLL_TYPES(COLL_TYPE_NAMES)
#undef COLL_TYPE_NAMES

#endif
