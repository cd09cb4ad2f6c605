# Point-to-point messages between ranks of one node, without MPI; included by _core.pyx.

@cython.no_gc_clear  # __dealloc__ needs what it refers to
cdef class PointToPoint:
    """Messages of the ranks of ``node``; ``areas`` has the offset of each rank's ``area`` in its heap, in rank order.

    ``area`` is this rank's block of ``point_to_point_bytes(size)`` zeroed bytes. All ranks must have made their blocks
    before any rank makes this object, and have dropped the object before a rank drops its block.
    """

    cdef coll_p2p *group
    cdef object keep

    def __cinit__(self, Node node not None, list areas, HeapBlock area not None):
        cdef int i, size = node.size
        heap, mappings = node.keep[0], node.keep[1]
        cdef coll_p2p_peer *peers = <coll_p2p_peer *>PyMem_Malloc(size * sizeof(coll_p2p_peer))
        if peers == NULL:
            raise MemoryError
        for i in range(size):
            own = i == node.rank
            peers[i].base = (<Heap>heap).base if own else (<Mapping?>mappings[i]).base
            peers[i].limit = (<Heap>heap).size if own else (<Mapping?>mappings[i]).identity.size
            peers[i].pid = (<Mapping?>mappings[i]).identity.pid
            peers[i].area = areas[i]
        self.group = coll_p2p_new((<Heap>heap).heap, size, node.rank, peers, node.reads_private)
        PyMem_Free(peers)
        if self.group == NULL:
            raise MemoryError("no memory for messages, or areas outside their heaps")
        self.keep = (node, area)

    def __dealloc__(self):
        with nogil:
            coll_p2p_free(self.group)

    def send(self, uintptr_t address, size_t nbytes, int peer, int64_t tag):
        """Begin to send ``nbytes`` bytes at ``address`` to the rank ``peer``; returns a PointToPointMessage."""
        return begun(self, False, address, nbytes, peer, tag)

    def receive(self, uintptr_t address, size_t nbytes, peer, int64_t tag):
        """Begin to receive ``nbytes`` bytes at ``address``, from any rank if ``peer`` is None; as :meth:`send`."""
        return begun(self, True, address, nbytes, COLL_P2P_ANY if peer is None else peer, tag)

    def give_up(self, bint receives_only=False):
        """Give up all messages: from then on nothing uses their memory. ``receives_only``: those that none reached."""
        with nogil:
            coll_p2p_give_up_all(self.group, receives_only)

    @property
    def pending(self):
        """Number of messages that have not ended. Without any, this rank uses no memory of other ranks."""
        cdef int found
        with nogil:
            found = coll_p2p_pending(self.group)
        return found


cdef PointToPointMessage begun(PointToPoint group, bint receives, uintptr_t address, size_t nbytes, int peer, int64_t tag):
    cdef PointToPointMessage made = PointToPointMessage.__new__(PointToPointMessage)
    cdef int code
    made.keep = group
    made.c.group, made.c.receives, made.c.peer, made.c.tag = group.group, receives, peer, tag
    made.c.memory, made.c.bytes = <void *>address, nbytes
    with nogil:
        code = coll_p2p_begin(&made.c)
    check(code, "message")
    made.task = coll_p2p_task(&made.c)
    return made


@cython.no_gc_clear  # __dealloc__ needs what it refers to
cdef class PointToPointMessage:
    """A message under way, whose memory belongs to the caller; it is given up when this object is deleted."""

    cdef coll_p2p_message c
    cdef coll_task task
    cdef PointToPoint keep

    def __dealloc__(self):
        if self.c.status == COLL_PENDING and self.c.group != NULL:
            with nogil:
                coll_p2p_withdraw(&self.c)

    def wait(self, bint yield_at_once=False, long limit=20_000_000):
        """Wait for up to ``limit`` ns (0: look once) without the GIL; return whether the message has gone or come.

        MismatchError if a message of another length has come; other errors if it can neither go nor come any more.
        """
        cdef int code
        with nogil:
            code = coll_progress_wait(&self.task, NULL, yield_at_once, limit)
        return check(code, "message") == COLL_OK

    @property
    def done(self):
        """Whether the message has gone or come, or has failed: nothing uses its memory any more."""
        return self.c.status != COLL_PENDING

    @property
    def source(self):
        """The rank that has sent what was received."""
        return self.c.source

    @property
    def received(self):
        """Bytes that this rank has sent."""
        return self.c.received

    def withdraw(self):
        """Give the message up, unless it has ended: from then on nothing reads or writes its memory."""
        with nogil:
            coll_p2p_withdraw(&self.c)


def point_to_point_bytes(int size):
    """Length in bytes of the area that each rank of a group of ``size`` ranks provides for messages."""
    return coll_p2p_area_bytes(size)
