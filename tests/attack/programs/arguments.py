"""Every collective, form and buffer specification: mpi4py's own method and ours do the same, or raise on the same rank.

    mpiexec -n 3 python arguments.py [EVERY]

One in EVERY cases is made (1: all), or with "usual" all of the usual buffer specifications without keywords. Where
`arguments_model.py` says that only some ranks raise, only those call, since the others would wait. Where the two need
not do the same, `ONLY_OURS`, `REFUSED`, `CONSTANTS`, `ROOT_REFUSES` and `is_excused` say why.
"""

import collections
import itertools
import sys

from arguments_calls import Calls, Case
from arguments_kinds import KINDS
from arguments_model import ERRORS
from mpi4py import MPI

import collectives as ours
from collectives.arguments.calls import COLLECTIVES

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
FORMS = ("blocking", "starting", "waited for by MPI", "persistent")
KEYWORDS = ("none", "names", "algorithm=None", "timeout", "another algorithm", "mpi")

USUAL = ("array", "typed", "counted")
#: Kinds that mpi4py refuses and ours serve: elements that MPI has no datatype for are moved as they are.
ONLY_OURS = ("half", "big-endian", "big-endian-integers", "records", "strings", "void", "times")
#: Kinds that ours refuse. mpi4py sends pointers to Python's objects as bytes, and a process that receives them crashes;
#: MPICH aborts where a datatype is null.
REFUSED = ("objects-as-bytes", "null-type", "null-type-counted")
#: MPI's constants where they have no meaning: mpi4py takes them for buffers of no bytes, and some MPIs crash.
CONSTANTS = ("in-place", "bottom")
#: Open MPI's root refuses MPI_BOTTOM here, which is valid, and the other ranks wait for it for ever.
ROOT_REFUSES = {("scatter", "send", "address"), ("scatterv", "send", "address")}


def is_excused(case, theirs, mine):
    """Whether ours need not do the same."""
    if case.keywords == "another algorithm" and "cannot serve this call: no kernel" in str(mine):
        return True  # which is documented: nothing falls back silently
    if case.kind == "as-bytes" and case.about.reduces and isinstance(theirs, MPI.Exception):
        return True  # some MPIs reduce no MPI.BYTE; ours reduce unsigned bytes
    return case.kind == "address" and isinstance(theirs, MPI.Exception)  # some MPIs refuse MPI_BOTTOM, which is valid


def call(comm, case, arguments, keywords):
    """Make the call of a case."""
    about, given = case.about, list(arguments.values())
    options = {}
    if keywords == "names":
        given, options = (), arguments
    elif keywords == "algorithm=None":
        options = {"algorithm": None}
    elif keywords == "timeout":
        options = {"timeout": 20.0} if case.form == "blocking" else {"deterministic": False}
    elif keywords == "another algorithm":
        options = {"algorithm": next(name for name in ours.algorithms(case.collective) if name not in ("shm", "mpi"))}
    elif keywords == "mpi":
        options = {"algorithm": "mpi"}
    if case.form == "blocking":
        getattr(comm, about.method)(*given, **options)
    elif case.form == "persistent":
        request = getattr(comm, about.method + "_init")(*given, **options)
        request.Start()
        request.Wait()
        request.Free()
    else:
        request = getattr(comm, "I" + about.name)(*given, **options)
        request.Wait() if case.form == "starting" else MPI.Request.Waitall([request])


def outcome(comm, case, keywords):
    """What a case does on this rank: "skipped", the error's class, or all memory; and what was predicted."""
    calls = Calls(case)
    failing = [error is not None for error in calls.errors]
    if keywords is None and case.kind in CONSTANTS and any(failing):
        return "skipped", calls
    if keywords is None and (case.collective, case.side, case.kind) in ROOT_REFUSES:
        return "skipped", calls
    if keywords == "mpi" and case.kind == "half" and case.about.reduces:
        return "skipped", calls  # some MPIs have a datatype for float16, which ours do not ask for: some ranks raise
    if case.kind in REFUSED:
        if keywords is None:
            return "skipped", calls
        failing = [sides[case.side] is not None for sides in calls.sides]
    if not any(failing):  # mpi4py reads and writes beyond the buffer; ours refuse
        if any(calls.outside) and keywords is None:
            return "skipped", calls
        failing = calls.outside
    if any(failing) and not failing[RANK]:
        return "skipped", calls
    try:
        call(comm, case, calls.arguments(RANK), keywords)
    except (*ERRORS, ours.CollectiveError) as e:
        return e, calls
    return calls.peek(RANK), calls


class Comparison:
    """What was found."""

    def __init__(self):
        self.plain = MPI.Intracomm(MPI.COMM_WORLD.Dup())
        self.plain.Set_errhandler(MPI.ERRORS_RETURN)
        self.comm = self.renewed()
        self.trials = self.wrong = 0
        self.excused = collections.Counter()

    def renewed(self):
        made = ours.Communicator(MPI.COMM_WORLD)
        made.timeout = 5.0
        return made

    def verdict(self, theirs, mine, calls):
        """What is wrong with ours on this rank, or None."""
        raises = isinstance(mine, Exception)
        if isinstance(mine, ours.CollectiveError):
            return f"ended by {mine!r}"
        if raises and not isinstance(mine, (TypeError, ValueError, MPI.Exception)):
            return f"raised {mine!r}"
        predicted = calls.errors[RANK] is not None
        if predicted and isinstance(theirs, list):
            return "the model is wrong: mpi4py serves this"
        if any(calls.outside) and not any(e is not None for e in calls.errors):
            return None if raises or mine == "skipped" else "served what is beyond the buffer"
        if calls.case.kind in REFUSED:
            return None if raises or mine == "skipped" else "served objects"
        if is_excused(calls.case, theirs, mine):
            return None
        if isinstance(theirs, Exception) and not raises and mine != "skipped":
            return f"served what mpi4py refuses: {theirs!r}"
        if isinstance(theirs, list) and raises:
            return f"refused what mpi4py serves: {mine!r}"
        if isinstance(theirs, list) and theirs != mine != "skipped" and not calls.overlaps(RANK):
            return "another result"
        return None

    def compare(self, case):
        """Make a case with mpi4py and with ours."""
        theirs, calls = outcome(self.plain, case, None)
        if case.kind in ONLY_OURS and any(sides[case.side] and sides[case.side].error for sides in calls.sides):
            self.note(case, self.verdict(theirs, "skipped", calls), False)
            return
        mine, calls = outcome(self.comm, case, case.keywords)
        self.note(case, self.verdict(theirs, mine, calls), isinstance(mine, ours.CollectiveError))

    def note(self, case, said, broken):
        """Count a case, with what this rank found wrong."""
        words = MPI.COMM_WORLD.allgather((said, broken))
        self.trials += 1
        if any(said for said, _ in words):
            self.wrong += 1
            if RANK == 0:
                print("wrong:", case, [said for said, _ in words], flush=True)
        if any(broken for _, broken in words):
            self.comm = self.renewed()


def cases():
    """All cases, in an order in which neighbours differ in everything but the collective."""
    forms = itertools.cycle(KEYWORDS[1:])
    for name in COLLECTIVES:
        if name == "barrier":
            continue
        sides = ("send", "recv")[: 1 if name == "bcast" and SIZE == 1 else 2]
        for side, kind, n, form in itertools.product(sides, KINDS, range(10), FORMS):
            yield Case(name, form, "none", side, kind, n)
            yield Case(name, form, next(forms), side, kind, n)


def main():
    which = sys.argv[1] if len(sys.argv) > 1 else "1"
    found = Comparison()
    usual = (case for case in cases() if case.kind in USUAL and case.keywords == "none")
    for case in usual if which == "usual" else itertools.islice(cases(), 0, None, int(which)):
        found.compare(case)
    if RANK == 0:
        print(f"attack: {found.trials} trials, {found.wrong} wrong")


main()
