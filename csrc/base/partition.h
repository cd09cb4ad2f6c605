/* The one place that divides n elements into p parts: balanced, the longer parts first. */
#ifndef COLL_PARTITION_H
#define COLL_PARTITION_H

#include <stddef.h>

/* First element of part i when n elements are divided into `parts` parts; n for i == parts. */
static inline size_t coll_part(size_t n, size_t parts, size_t i) {
    size_t each = n / parts, longer = n % parts;
    return i * each + (i < longer ? i : longer);
}

#endif
