# Plans for calls of ranks on several nodes; included by _core.pyx.

#: Where the input and the output of a part are: in the call's input, its vector, or the plan's scratch memory.
PLACES = ("input", "vector", "scratch")


cdef class Transpose:
    """The task of a part that exchanges rows and columns of a matrix whose entries have ``nbytes`` bytes.

    There is a row at least. ``footprint`` is 0: it has no memory of its own.
    """

    cdef coll_matrix matrix
    cdef readonly size_t footprint

    def __cinit__(self, size_t rows, size_t columns, size_t nbytes):
        self.matrix.rows, self.matrix.columns, self.matrix.bytes = rows, columns, nbytes


cdef int set_part(coll_hierarchy_part *part, tuple told) except -1:
    task, run, after, source, target = told
    part.message, part.run = NULL, NULL
    memset(&part.matrix, 0, sizeof(coll_matrix))
    if isinstance(task, NodePlan):
        part.message = &(<NodePlan>task).message
    elif isinstance(task, Transpose):
        part.matrix = (<Transpose>task).matrix
    else:
        part.run = (<Plan?>task).execution
    part.tag, part.after = run, after
    part.source, part.source_at = source
    part.target, part.target_at = target
    if not (0 <= part.source < COLL_PLACES and 0 <= part.target < COLL_PLACES and 0 <= part.tag < COLL_HIERARCHY_RUNS):
        raise ValueError(f"part of {task}: a place or the number of its run is out of range")
    return 0


@cython.no_gc_clear  # __dealloc__ needs what it refers to
cdef class HierarchyPlan(Task):
    """A plan for calls of ranks on several nodes: a sequence of parts (csrc/hierarchy/hierarchy.h).

    ``parts`` are tuples ``(task, run, after, source, target)``. The task is a NodePlan of the group ``node``, a Plan for
    a schedule between nodes, or a Transpose; ``run`` numbers those that may run at once, and is a NodePlan's channel.
    ``after`` is the index of the part that must have ended before, or -1. ``source`` and ``target`` are
    ``(place, byte)``, with the index of a place in PLACES. ``ranks`` are those of the group, ``size`` is the number of
    ranks of the communicator, and ``scratch`` a HeapBlock for results between parts, or None.
    """

    cdef coll_hierarchy *hierarchy
    cdef coll_hierarchy_part *parts
    cdef int *members
    cdef Node node
    cdef object keep

    def __cinit__(self, Node node, list ranks not None, int size, list parts not None, scratch, size_t footprint):
        cdef int i, n = len(parts)
        self.parts = <coll_hierarchy_part *>malloc((n + 1) * sizeof(coll_hierarchy_part))
        self.members = <int *>malloc((len(ranks) + 1) * sizeof(int))
        if self.parts == NULL or self.members == NULL:
            raise MemoryError
        for i in range(len(ranks)):
            self.members[i] = ranks[i]
        for i in range(n):
            set_part(&self.parts[i], parts[i])
        cdef uintptr_t memory = 0 if scratch is None else scratch.address
        cdef coll_node **channels = NULL if node is None else node.channels
        self.hierarchy = coll_hierarchy_new(self.parts, n, channels, self.members, <void *>memory)
        if self.hierarchy == NULL:
            raise MemoryError
        if node is not None:
            coll_hierarchy_set_mpi(self.hierarchy, node.mpi, node.endpoint)
        self.task = coll_hierarchy_task(self.hierarchy)
        self.ranks = size
        self.footprint = footprint
        self.node = node
        self.keep = [part[0] for part in parts], scratch

    def __dealloc__(self):
        if self.hierarchy != NULL and coll_hierarchy_busy(self.hierarchy):
            Py_INCREF(self.keep)  # MPI may still write to the memory of a run that has not ended
        coll_hierarchy_free(self.hierarchy)
        free(self.parts)
        free(self.members)

    @property
    def busy(self):
        """Whether a run is under way, or has ended with an error."""
        return bool(coll_hierarchy_busy(self.hierarchy))

    cdef int begin(self, const void *input, void *vector, int tag) except -1:
        if self.node is not None:
            self.node.runs += 1
        return check(coll_hierarchy_start(self.hierarchy, input, vector, tag), "start")
