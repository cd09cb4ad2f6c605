# Memory that processes share: heaps, blocks on them, and NumPy arrays there; included by _core.pyx.

cdef size_t COLL_PAGE = os.sysconf("SC_PAGESIZE")


cdef class Heap:
    """The shared memory of this process, ``size`` bytes of address space; OSError where there can be none."""

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
        """What a peer needs to map this heap, as bytes."""
        cdef coll_heap_id identity = coll_heap_identify(self.heap)
        return (<char *>&identity)[:sizeof(identity)]

    def __contains__(self, uintptr_t address):
        return bool(coll_heap_has(self.base, self.size, <const void *>address))

    @property
    def inherited(self):
        """Whether this is a forked child and the heap its parent's, from which it gets nothing."""
        return bool(coll_heap_is_inherited(self.heap))

    @property
    def reserved(self):
        """Bytes that have memory behind them at present."""
        return coll_heap_reserved(self.heap)


@cython.no_gc_clear  # __dealloc__ needs what it refers to
cdef class HeapBlock:
    """Memory on a heap, given back when the last array on it is collected; a writable buffer of bytes."""

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
        """Have whole pages of the block, from an address on, appear at another address too, in place of the mapping
        there, which takes them away again when it is unmapped; OSError where they cannot. In a forked child what
        appears is a copy of its own."""
        cdef size_t page = COLL_PAGE
        cdef uintptr_t begin = <uintptr_t>self.memory
        if (piece | at | nbytes) % page or piece < begin or piece + nbytes > begin + <size_t>self.nbytes:
            raise ValueError("not whole pages of the block")
        if coll_heap_alias(self.heap.heap, <const void *>piece, nbytes, <void *>at):
            raise OSError(errno, strerror(errno).decode())

    @property
    def address(self):
        """Where the block begins."""
        return <uintptr_t>self.memory

    @property
    def offset(self):
        """Where the block begins in its heap."""
        return <char *>self.memory - self.heap.base


cdef class Mapping:
    """A peer's heap, mapped here; OSError where it cannot be."""

    cdef coll_heap_id identity
    cdef char *base

    def __cinit__(self, bytes identity):
        if len(identity) != sizeof(coll_heap_id):
            raise ValueError("not a heap's identity")
        memcpy(&self.identity, <char *>identity, sizeof(coll_heap_id))
        self.base = coll_heap_attach(&self.identity)
        if self.base == NULL:
            raise OSError(errno, strerror(errno).decode())

    def __dealloc__(self):
        coll_heap_detach(&self.identity, self.base)

    @property
    def pid(self):
        """The peer's process."""
        return self.identity.pid

    @property
    def alive(self):
        """Whether the peer's process still has its heap."""
        return os.path.exists(f"/proc/{self.identity.pid}/fd/{self.identity.fd}")

    @property
    def private_is_readable(self):
        """Whether the private memory of the peer's process can be read as well."""
        return bool(coll_heap_private_is_readable(&self.identity))


def let_read(int64_t pid):
    """Let a process and its descendants read this one's private memory, and no others, where the system's Yama asks."""
    coll_heap_let_read(pid)


# NumPy's allocator (NEP 49): arrays from a size on live on the heap.

cdef Heap array_heap = None
cdef coll_heap *array_memory = NULL
cdef char *array_base = NULL
cdef size_t array_size = 0
cdef size_t array_threshold = 0


cdef inline bint on_heap(const void *memory) noexcept nogil:
    return array_memory != NULL and coll_heap_has(array_base, array_size, memory)


cdef void *array_malloc(void *context, size_t nbytes) noexcept nogil:
    # A heap that is full is no reason to fail, nor one of a forked child's parent: the array is private then, and
    # collectives copy it.
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
    """Put NumPy's new arrays of at least ``threshold`` bytes on the heap; returns the handler that was in force.

    In force in the current context (PEP 567): threads started otherwise keep NumPy's own allocator.
    """
    global array_heap, array_memory, array_base, array_size, array_threshold
    array_heap = heap  # never let go: arrays may outlive everybody else
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
    """Put a handler that :func:`share_arrays` returned back in force."""
    PyDataMem_SetHandler(handler)
