# Call sites: a small number for the frame outside this library from which a call comes; included by _core.pyx.
# The number is found by code object and instruction, in about 10 ns; file and line are looked up at the end.

from cpython.ref cimport Py_XDECREF

cdef extern from *:
    """
    #if PY_VERSION_HEX < 0x030B0000
    #include <frameobject.h>
    static inline int coll_instruction(PyFrameObject *frame) { return 2 * frame->f_lasti; }
    #else
    #define coll_instruction PyFrame_GetLasti
    #endif
    """
    ctypedef struct PyFrameObject:
        pass
    PyFrameObject *PyEval_GetFrame()
    PyObject *PyFrame_GetCode "(PyObject *)PyFrame_GetCode" (PyFrameObject *)
    PyFrameObject *PyFrame_GetBack(PyFrameObject *)
    int coll_instruction(PyFrameObject *)

cdef enum:
    MOST_PLACES = 65536  # further call sites are 0, unknown, since a program may compile code again and again

cdef struct place_slot:
    void *code
    int instruction
    int32_t place  # -1: a frame of this library; the frame of its caller counts


cdef class CallSites:
    """Call sites by number. ``foreign(file)`` tells whether frames of a file are skipped."""

    cdef place_slot *slots
    cdef size_t room, used
    cdef object foreign
    cdef list codes  # keeps the code objects alive, so that their addresses are not reused
    cdef list found

    def __cinit__(self, foreign):
        self.room = 1024
        self.slots = <place_slot *>calloc(self.room, sizeof(place_slot))
        if self.slots == NULL:
            raise MemoryError
        self.foreign = foreign
        self.codes = []
        self.found = [None]

    def __dealloc__(self):
        free(self.slots)

    cdef int32_t present(self) except -2:
        """The number of the call site of the running call."""
        cdef PyFrameObject *frame = PyEval_GetFrame()
        cdef PyFrameObject *held = NULL
        cdef PyObject *code
        cdef int32_t place = 0
        try:
            while frame != NULL:
                code = PyFrame_GetCode(frame)
                try:
                    place = self.of(<void *>code, coll_instruction(frame))
                finally:
                    Py_XDECREF(code)
                if place >= 0:
                    return place
                frame = PyFrame_GetBack(frame)
                Py_XDECREF(<PyObject *>held)
                held = frame
            return 0
        finally:
            Py_XDECREF(<PyObject *>held)

    cdef int32_t of(self, void *code, int instruction) except -2:
        cdef place_slot *slot = self.slot_of(code, instruction)
        return self.learn(code, instruction) if slot.code == NULL else slot.place

    cdef place_slot *slot_of(self, void *code, int instruction) noexcept:
        """The slot of the code object and instruction, or the free slot for them (linear probing)."""
        cdef size_t i = ((<size_t>code >> 4) + <size_t>instruction * 40503) & (self.room - 1)
        while self.slots[i].code != NULL and (self.slots[i].code != code or self.slots[i].instruction != instruction):
            i = (i + 1) & (self.room - 1)
        return &self.slots[i]

    cdef int32_t learn(self, void *code, int instruction) except -2:
        cdef int32_t place = -1
        made = <object>code
        cdef bint foreign = self.foreign(made.co_filename)  # meanwhile other threads may learn places, this one too
        cdef place_slot *slot = self.slot_of(code, instruction)
        if slot.code != NULL:
            return slot.place
        if self.used == MOST_PLACES:
            return 0
        if not foreign:
            place = <int32_t>len(self.found)
            self.found.append((made, instruction))
        self.codes.append(made)
        slot[0] = place_slot(code, instruction, place)
        self.used += 1
        if 2 * self.used > self.room:
            self.grow()
        return place

    cdef int grow(self) except -1:
        cdef place_slot *old = self.slots
        cdef size_t i, room = self.room
        self.slots = <place_slot *>calloc(2 * room, sizeof(place_slot))
        if self.slots == NULL:
            self.slots = old
            raise MemoryError
        self.room = 2 * room
        for i in range(room):
            if old[i].code != NULL:
                self.slot_of(old[i].code, old[i].instruction)[0] = old[i]
        free(old)
        return 0

    def texts(self):
        """File, line and function of each call site by number; number 0 is the unknown one."""
        return [("", 0, ""), *(_text_of(code, instruction) for code, instruction in self.found[1:])]


cdef _text_of(code, int instruction):
    for begin, end, line in code.co_lines():
        if begin <= instruction < end:
            return code.co_filename, line or code.co_firstlineno, code.co_name
    return code.co_filename, code.co_firstlineno, code.co_name
