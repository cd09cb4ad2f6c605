/* The list of ops, the loop that serves each op for each class of types, and what each loop computes. */
#ifndef COLL_OPS_H
#define COLL_OPS_H

/* The number of an op is its place in the list. reproducible_sum is in exact.h. */
#define COLL_OPS(X)                                                                                                    \
    X(sum)                                                                                                             \
    X(prod) X(min) X(max) X(land) X(lor) X(lxor) X(band) X(bor) X(bxor) X(avg) X(minloc) X(maxloc) X(reproducible_sum)

#define COLL_OP_NUMBER(op) COLL_OP_##op,
enum { COLL_OPS(COLL_OP_NUMBER) COLL_NOPS };
#undef COLL_OP_NUMBER

/* X(T, loop): the loops that are compiled for a type T of each class. */
#define COLL_LOOPS_BOOL(X, T)   X(T, land) X(T, lor) X(T, lxor)
#define COLL_LOOPS_SIGNED(X, T) X(T, min) X(T, max)
#define COLL_LOOPS_UNSIGNED(X, T)                                                                                      \
    X(T, add) X(T, mul) X(T, min) X(T, max) X(T, land) X(T, lor) X(T, lxor) X(T, band) X(T, bor) X(T, bxor)
#define COLL_LOOPS_FLOAT(X, T)   X(T, fadd) X(T, fmul) X(T, fmin) X(T, fmax)
#define COLL_LOOPS_COMPLEX(X, T) X(T, cadd) X(T, cmul)
#define COLL_LOOPS_PAIR(X, T)    X(T, minloc) X(T, maxloc)

/* X(op, type, loop): the ops of each class, with the type whose loop serves them. T is the type, U its twin. */
#define COLL_ROW_BOOL(X, T, U)                                                                                         \
    X(sum, T, lor)                                                                                                     \
    X(prod, T, land)                                                                                                   \
    X(min, T, land)                                                                                                    \
    X(max, T, lor) X(land, T, land) X(lor, T, lor) X(lxor, T, lxor) X(band, T, land) X(bor, T, lor) X(bxor, T, lxor)
#define COLL_ROW_SIGNED(X, T, U)                                                                                       \
    X(sum, U, add)                                                                                                     \
    X(prod, U, mul)                                                                                                    \
    X(min, T, min)                                                                                                     \
    X(max, T, max) X(land, U, land) X(lor, U, lor) X(lxor, U, lxor) X(band, U, band) X(bor, U, bor) X(bxor, U, bxor)
#define COLL_ROW_UNSIGNED(X, T, U) COLL_ROW_SIGNED(X, T, U)
#define COLL_ROW_FLOAT(X, T, U)    X(sum, T, fadd) X(prod, T, fmul) X(min, T, fmin) X(max, T, fmax)
#define COLL_ROW_COMPLEX(X, T, U)  X(sum, T, cadd) X(prod, T, cmul)
#define COLL_ROW_PAIR(X, T, U)     X(minloc, T, minloc) X(maxloc, T, maxloc)

/* X(T, loop): the classes that have avg, and their loop of addition. */
#define COLL_AVG_BOOL(X, T)
#define COLL_AVG_SIGNED(X, T)
#define COLL_AVG_UNSIGNED(X, T)
#define COLL_AVG_FLOAT(X, T)   X(T, fadd)
#define COLL_AVG_COMPLEX(X, T) X(T, cadd)
#define COLL_AVG_PAIR(X, T)

/* What a loop computes: A is the accumulator type; x and y are variables. 1u makes the arithmetic of narrow integers
 * unsigned: products of uint16 would overflow int. */
#define COLL_EVAL_add(A, x, y)  ((A)(1u * x + y))
#define COLL_EVAL_mul(A, x, y)  ((A)(1u * x * y))
#define COLL_EVAL_min(A, x, y)  (y < x ? y : x)
#define COLL_EVAL_max(A, x, y)  (y > x ? y : x)
#define COLL_EVAL_land(A, x, y) ((A)((x != 0) & (y != 0)))
#define COLL_EVAL_lor(A, x, y)  ((A)((x | y) != 0))
#define COLL_EVAL_lxor(A, x, y) ((A)((x != 0) ^ (y != 0)))
#define COLL_EVAL_band(A, x, y) ((A)(x & y))
#define COLL_EVAL_bor(A, x, y)  ((A)(x | y))
#define COLL_EVAL_bxor(A, x, y) ((A)(x ^ y))
#define COLL_EVAL_fadd(A, x, y) (x + y)
#define COLL_EVAL_fmul(A, x, y) (x * y)
/* NaN wins; of equal operands (-0 and +0) the left one. In this form the inner choice is one x86 instruction. */
#define COLL_EVAL_fmin(A, x, y) (y != y ? y : (y < x ? y : x))
#define COLL_EVAL_fmax(A, x, y) (y != y ? y : (y > x ? y : x))
#define COLL_EVAL_cadd(A, x, y) ((A){x.re + y.re, x.im + y.im})
#define COLL_EVAL_cmul(A, x, y) ((A){x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re})
/* NaN wins; of equal values, and of two NaN, the one with the lower index. */
#define COLL_PICK(x, y, better)                                                                                        \
    (((better) | ((y.value != y.value) & (x.value == x.value)) |                                                       \
      (((x.value == y.value) | ((x.value != x.value) & (y.value != y.value))) & (y.index < x.index)))                  \
         ? y                                                                                                           \
         : x)
#define COLL_EVAL_minloc(A, x, y) COLL_PICK(x, y, y.value < x.value)
#define COLL_EVAL_maxloc(A, x, y) COLL_PICK(x, y, y.value > x.value)

/* The division of avg. */
#define COLL_DIVIDE_fadd(A, x, p) (x / (A)p)
#define COLL_DIVIDE_cadd(A, x, p) ((A){x.re / p, x.im / p})

#endif
