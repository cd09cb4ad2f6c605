"""An entry of a selection table, for tests that change it."""

from collectives.selection.layout import Layout
from collectives.selection.model import Model, Piece
from collectives.selection.policy import NODE_LIMITS
from collectives.selection.table import Entry

MODEL = Model((Piece(1024, 2e-6, 1e-9, 0.0), Piece(None, 5e-6, 2e-10, 1e-10)), 0.1)


def entry(**changes):
    fields = {
        "machine": "AMD EPYC, 2 cores", "mpi": "Open MPI 5.0", "layout": Layout(1, 2),
        "rules": {"allreduce": [(4096, "shm", None), (None, "ring", 65536)], "bcast": [(None, "mpi", None)]},
        "limits": NODE_LIMITS[False], "models": {("allreduce", "ring", 65536): MODEL}, "made": {"date": "2026-01-02"},
    }  # fmt: skip
    return Entry(**{**fields, **changes})
