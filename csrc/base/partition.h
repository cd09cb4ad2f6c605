/* The one place that divides n elements by p: balanced parts, the longer ones first. */
#ifndef COLL_PARTITION_H
#define COLL_PARTITION_H

#include <stddef.h>

/* First element of part i of n elements in `parts` parts; i == parts gives n. */
static inline size_t coll_part(size_t n, size_t parts, size_t i) {
    size_t each = n / parts, longer = n % parts;
    return i * each + (i < longer ? i : longer);
}

#endif
