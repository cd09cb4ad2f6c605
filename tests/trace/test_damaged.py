"""Files that are no timelines, or damaged ones: they are refused, with the name of the file and of the field."""

import json
import re

import numpy as np
import pytest

from collectives.cli.commands import main
from collectives.trace.timeline import EVENT

OF_US = {"traceEvents": [], "otherData": {
    "format": "collectives timeline", "version": 1, "ranks": 1, "missing_ranks": [], "seconds": 1.0,
    "rank": [{"rank": 0, "host": "here", "clock": "own", "dropped": 0}],
}}  # fmt: skip
CALL = {"ph": "X", "cat": "collective", "name": "allreduce", "pid": 0, "tid": 0, "ts": 1.0, "dur": 2.0, "args": {
    "collective": "allreduce", "form": "blocking", "algorithm": "shm", "communicator": "0 (1 ranks)", "caller": "a:1 f",
    "bytes": 8, "call": 1, "wait_us": 0.5, "work_us": 1.5,
}}  # fmt: skip


def changed(event, about, **args):
    """A timeline of one call, with these fields of the event, of what the file says of itself, and of the call."""
    call = {**CALL, **event, "args": {**CALL["args"], **args}}
    return {**OF_US, "traceEvents": [call], "otherData": {**OF_US["otherData"], **about}}


DAMAGED = [
    ({**OF_US, "otherData": None}, "otherData: expected an object"),
    ({**OF_US, "traceEvents": 5}, "traceEvents: expected a list"),
    ({"traceEvents": [], "otherData": {"format": "collectives timeline"}}, "otherData: ranks is missing"),
    (changed({}, {"rank": [1]}), "otherData: expected an object, not int"),
    (changed({}, {"rank": [{"rank": 0, "host": 1}]}), "otherData: host: expected a string"),
    ({**OF_US, "traceEvents": [7]}, "event 1: expected an object, not int"),
    ({**OF_US, "traceEvents": [CALL, {"ph": "e"}]}, "event 2: name is missing"),
    (changed({"ts": 10**400}, {}), "event 1: ts: expected a number"),
    (changed({"ph": "b"}, {}), "event 1: id2 is missing"),
    (changed({"ph": "b", "id2": {}}, {}), "event 1: local is missing"),
    (changed({"cat": []}, {}), "event 1: cat: expected a string"),
    (changed({}, {}, bytes="8"), "event 1: args: bytes: expected a number"),
    (changed({}, {}, late_us=None), "event 1: args: late_us: expected a number"),
    (changed({}, {}, work_us=float("nan")), "event 1: args: work_us: expected a number"),
]


@pytest.mark.parametrize(("content", "words"), DAMAGED)
def test_damaged_timelines(content, words, tmp_path, capsys):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(content))
    assert main(["trace", str(path)]) == 2
    assert re.search(rf"^trace: error: {path} .*: {re.escape(words)}", capsys.readouterr().err)


def test_a_timeline_that_is_not_damaged(tmp_path, capsys):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(changed({}, {})))
    assert main(["trace", str(path)]) == 0
    assert "allreduce" in capsys.readouterr().out
    path.write_text("[" * 100_000)
    assert main(["trace", str(path)]) == 2
    assert "is not a timeline of this library (RecursionError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("about", "words"), [("null", "of another version"), ('{"version": 1}', "part of a timeline: rank is missing")]
)
def test_damaged_parts(about, words, tmp_path, capsys):
    part = tmp_path / "t.json.rank0.part"
    with part.open("wb") as file:
        np.savez(file, about=about, events=np.zeros(0, EVENT))
    assert main(["trace", str(tmp_path / "t.json")]) == 2
    assert words in capsys.readouterr().err
    part.write_bytes(part.read_bytes()[:-30])
    assert main(["trace", str(tmp_path / "t.json")]) == 2
    assert "is not a rank's part of a timeline" in capsys.readouterr().err
