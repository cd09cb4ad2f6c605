# The records of one process for a timeline; included by _core.pyx.

cdef enum:
    LAST_NAME = 65535  # of 16 bits; it stands for all names that come after so many others

cdef class Recorder:
    """Records of this process's collectives and spans, at most ``most``; further ones are dropped and counted.

    ``foreign(file)`` tells whether frames of a file do not belong to the program.
    """

    cdef coll_trace trace
    cdef readonly CallSites places
    cdef readonly list names  # of algorithms, spans and errors, by number
    cdef dict numbers
    cdef uint32_t comms

    def __cinit__(self, size_t most, foreign):
        if coll_trace_init(&self.trace, most):
            raise MemoryError(f"no memory for {most} records of calls")
        self.places = CallSites(foreign)
        self.names = ["shm"]
        self.numbers = {"shm": 0}

    def __dealloc__(self):
        coll_trace_free(&self.trace)

    cdef int number_of(self, str name) except -1:
        number = self.numbers.get(name)
        if number is None:
            number = min(len(self.names), LAST_NAME)
            if number == len(self.names):
                self.names.append(name if number < LAST_NAME else "(other names)")
            if number < LAST_NAME:
                self.numbers[name] = number
        return number

    def begin_span(self, str name):
        """Begin the span ``name``; returns the index of its record, or -1 if there is no room."""
        cdef coll_trace_event *e
        cdef int number = self.number_of(name)
        cdef int32_t place = self.places.present()
        e = coll_trace_add(&self.trace, coll_ticks())
        if e == NULL:
            return -1
        e.form = COLL_TRACE_SPAN
        e.name = number
        e.site = place
        e.begin = coll_ticks()
        return e - self.trace.events

    def end_span(self, Py_ssize_t index):
        """End the span whose record has this index."""
        if index >= 0:
            self.trace.events[index].end = self.trace.events[index].returned = coll_ticks()

    @property
    def dropped(self):
        """Number of records that were dropped."""
        return self.trace.dropped

    def events(self):
        """The records so far, as bytes: an array of ``coll_trace_event``."""
        return PyBytes_FromStringAndSize(<char *>self.trace.events, self.trace.count * sizeof(coll_trace_event))

    def moments(self):
        """Pairs (ticks, ns) of the time counter and CLOCK_MONOTONIC at the same moments; the last one is now."""
        coll_trace_note(&self.trace)
        return [(self.trace.moments[i].ticks, self.trace.moments[i].ns) for i in range(self.trace.nmoments)]


cdef class Log:
    """The records of one communicator's calls, in ``recorder``."""

    cdef readonly Recorder recorder
    cdef uint32_t comm

    def __cinit__(self, Recorder recorder):
        self.recorder = recorder
        self.comm = recorder.comms
        recorder.comms += 1

    cdef Py_ssize_t note(self, int collective, uint64_t nbytes, uint64_t number, int root, uint64_t begin,
                         uint64_t end) except -2:
        """Add a record of a blocking call of the node-local engine, which has ended; returns its index, -1 without room."""
        cdef int32_t place = self.recorder.places.present()
        cdef coll_trace_event *e = coll_trace_add(&self.recorder.trace, end)
        if e == NULL:
            return -1
        e.begin = begin
        e.end = e.returned = end
        e.bytes = nbytes
        e.number = number
        e.site = place
        e.root = root
        e.comm = self.comm
        e.collective = collective
        return e - self.recorder.trace.events

    cpdef add(self, int form, str collective, str name, uint64_t nbytes, uint64_t number, int root, uint64_t begin,
            bint ended=True, bint failed=False):
        """Add a record of a call that began at tick ``begin`` and returns now; returns its index, -1 without room.

        ``ended``: the call has ended, too; otherwise :meth:`end` is to follow.
        """
        cdef int named = self.recorder.number_of(name)
        cdef Py_ssize_t index = self.note(kind_of(collective), nbytes, number, root, begin, coll_ticks())
        cdef coll_trace_event *e
        if index >= 0:
            e = &self.recorder.trace.events[index]
            e.name, e.form, e.failed = named, form, failed
            if not ended:
                e.end = 0
        return index

    cpdef end(self, Py_ssize_t index, uint64_t tick, bint failed=False):
        """Complete the record with this index: its call ended at ``tick``."""
        if index >= 0 and self.recorder.trace.events[index].end == 0:
            self.recorder.trace.events[index].end = tick
            self.recorder.trace.events[index].failed = failed

    cpdef waited(self, Py_ssize_t index, uint64_t begin):
        """Add a record of a wait, from tick ``begin`` until now, for the call whose record has this index."""
        cdef coll_trace_event *e
        cdef uint64_t now = coll_ticks()
        cdef int32_t place = self.recorder.places.present()
        if index < 0:
            return
        e = coll_trace_add(&self.recorder.trace, now)
        if e != NULL:
            memcpy(e, &self.recorder.trace.events[index], sizeof(coll_trace_event))
            e.form = COLL_TRACE_WAIT
            e.begin = begin
            e.end = e.returned = now
            e.site = place


def ticks():
    """The value of the processor's time counter."""
    return coll_ticks()
