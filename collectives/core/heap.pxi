# Memory that processes share: heaps, blocks on heaps, and NumPy arrays in blocks; included by _core.pyx.

cdef size_t COLL_PAGE = os.sysconf("SC_PAGESIZE")


cdef class Heap:
    """The shared memory of this process, ``size`` bytes of address space; OSError if the system gives none."""

    cdef coll_heap *heap
    cdef char *base
    cdef readonly size_t size

    def __cinit__(self, size_t size):
        self.heap = coll_heap_new(size)
        if self.heap == NULL:
            raise OSError(errno, f"no shared memory for the heap: {strerror(errno).decode()}")
        self.base = coll_heap_base(self.heap)
        self.size = coll_heap_size(self.heap)

    def __dealloc__(self):
        coll_heap_free(self.heap)

    def identify(self):
        """The identity of this heap as bytes, by which a peer can map it (see :class:`Mapping`)."""
        cdef coll_heap_id identity = coll_heap_identify(self.heap)
        return (<char *>&identity)[:sizeof(identity)]

    def __contains__(self, uintptr_t address):
        return bool(coll_heap_has(self.base, self.size, <const void *>address))

    @property
    def inherited(self):
        """Whether this process is a forked child, and the heap its parent's; the child cannot allocate there."""
        return bool(coll_heap_is_inherited(self.heap))

    @property
    def reserved(self):
        """Bytes of the heap that have memory now."""
        return coll_heap_reserved(self.heap)


@cython.no_gc_clear  # __dealloc__ needs what it refers to
cdef class HeapBlock:
    """A block of ``nbytes`` bytes on a heap: a writable buffer of bytes, freed when the last array on it is deleted."""

    cdef Heap heap
    cdef void *memory
    cdef Py_ssize_t nbytes
    cdef Py_ssize_t shape[1]

    def __cinit__(self, Heap heap, size_t nbytes, bint zero=False):
        self.heap = heap
        self.nbytes = nbytes
        with nogil:
            self.memory = coll_heap_alloc(heap.heap, nbytes)
        if self.memory == NULL:
            raise MemoryError(f"no {nbytes} bytes of shared memory for the heap: {strerror(errno).decode()}")
        if zero:
            with nogil:
                memset(self.memory, 0, nbytes)

    def __dealloc__(self):
        if self.memory != NULL:
            coll_heap_release(self.heap.heap, self.memory)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.memory, self.nbytes, 0, flags)

    def appear_at(self, uintptr_t piece, size_t nbytes, uintptr_t at):
        """Map whole pages of the block, ``nbytes`` bytes from the address ``piece`` on, a second time at the address
        ``at``, where they replace the existing mapping until it is unmapped. In a forked child the second mapping is a
        private copy. ValueError for anything but whole pages of the block; OSError if the system refuses."""
        cdef size_t page = COLL_PAGE
        cdef uintptr_t begin = <uintptr_t>self.memory
        if (piece | at | nbytes) % page or piece < begin or piece + nbytes > begin + <size_t>self.nbytes:
            raise ValueError("piece, nbytes, at: not whole pages within the block")
        if coll_heap_alias(self.heap.heap, <const void *>piece, nbytes, <void *>at):
            raise OSError(errno, strerror(errno).decode())

    @property
    def address(self):
        """Address of the block."""
        return <uintptr_t>self.memory

    @property
    def offset(self):
        """Offset of the block in its heap, in bytes."""
        return <char *>self.memory - self.heap.base


cdef class Mapping:
    """A peer's heap, mapped in this process; OSError if it cannot be mapped."""

    cdef coll_heap_id identity
    cdef char *base

    def __cinit__(self, bytes identity):
        if len(identity) != sizeof(coll_heap_id):
            raise ValueError("identity: not made by Heap.identify")
        memcpy(&self.identity, <char *>identity, sizeof(coll_heap_id))
        self.base = coll_heap_attach(&self.identity)
        if self.base == NULL:
            raise OSError(errno, strerror(errno).decode())

    def __dealloc__(self):
        coll_heap_detach(&self.identity, self.base)

    @property
    def pid(self):
        """PID of the peer's process."""
        return self.identity.pid

    @property
    def alive(self):
        """Whether the peer's process still has its heap open."""
        return os.path.exists(f"/proc/{self.identity.pid}/fd/{self.identity.fd}")

    @property
    def private_is_readable(self):
        """Whether this process can read the private memory of the peer's process as well."""
        return bool(coll_heap_private_is_readable(&self.identity))


def let_read(int64_t pid):
    """Permit process ``pid`` and its descendants, instead of others, to read this process's private memory (Yama)."""
    coll_heap_let_read(pid)


# NumPy's allocator (NEP 49): arrays of at least `array_threshold` bytes are on the heap.

cdef Heap array_heap = None
cdef coll_heap *array_memory = NULL
cdef char *array_base = NULL
cdef size_t array_size = 0
cdef size_t array_threshold = 0


cdef inline bint on_heap(const void *memory) noexcept nogil:
    return array_memory != NULL and coll_heap_has(array_base, array_size, memory)


cdef void *array_malloc(void *context, size_t nbytes) noexcept nogil:
    # If the heap is full, or belongs to a forked child's parent, the array is private, and collectives copy it.
    cdef void *memory = coll_heap_alloc(array_memory, nbytes) if nbytes >= array_threshold else NULL
    return memory if memory != NULL else malloc(nbytes)


cdef void *array_calloc(void *context, size_t count, size_t each) noexcept nogil:
    if each and count > <size_t>-1 // each:
        return NULL
    cdef void *memory = coll_heap_alloc(array_memory, count * each) if count * each >= array_threshold else NULL
    if memory == NULL:
        return calloc(count, each)
    return memset(memory, 0, count * each)


cdef void array_free(void *context, void *memory, size_t nbytes) noexcept nogil:
    if on_heap(memory):
        coll_heap_release(array_memory, memory)
    else:
        free(memory)


cdef void *array_realloc(void *context, void *memory, size_t nbytes) noexcept nogil:
    if memory == NULL:
        return array_malloc(context, nbytes)
    if not on_heap(memory):
        return realloc(memory, nbytes)
    if coll_heap_resize(array_memory, memory, nbytes):
        return memory
    cdef size_t held = coll_heap_usable(array_memory, memory)
    cdef void *other = array_malloc(context, nbytes)
    if other != NULL:
        memcpy(other, memory, min(held, nbytes))
        coll_heap_release(array_memory, memory)
    return other


cdef PyDataMem_Handler array_handler


def share_arrays(Heap heap, size_t threshold):
    """Put NumPy's new arrays of at least ``threshold`` bytes on the heap; returns NumPy's previous handler.

    This holds in the current context (PEP 567): other threads keep NumPy's own allocator.
    """
    global array_heap, array_memory, array_base, array_size, array_threshold
    array_heap = heap  # kept for ever, since arrays may outlive all other owners
    array_memory, array_base, array_size = heap.heap, heap.base, heap.size
    array_threshold = threshold
    memcpy(array_handler.name, b"collectives", 12)
    array_handler.version = 1
    array_handler.allocator.malloc = array_malloc
    array_handler.allocator.calloc = array_calloc
    array_handler.allocator.realloc = array_realloc
    array_handler.allocator.free = array_free
    return PyDataMem_SetHandler(PyCapsule_New(&array_handler, b"mem_handler", NULL))


def restore_handler(handler):
    """Restore the handler of NumPy's that :func:`share_arrays` returned."""
    PyDataMem_SetHandler(handler)
