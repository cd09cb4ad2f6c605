"""The records of a timeline."""

import numpy as np

from collectives.core import _core
from collectives.trace.timeline import EVENT


def test_names_beyond_the_last_number_share_one_that_says_so():
    """Numbers of names have 16 bits: no name may pass for another one."""
    recorder = _core.Recorder(70_000, lambda file: False)
    told = ["shm", *(f"step {i}" for i in range(65_540)), "step 3"]
    for name in told:
        recorder.end_span(recorder.begin_span(name))
    events = np.frombuffer(recorder.events(), EVENT)
    found = [recorder.names[number] for number in events["name"]]
    assert found == [*told[:65_535], *["(other names)"] * 6, "step 3"]
