"""What ranks read from torch's store, which has no users: anybody who reaches its port may write there.

It is none of a rank's words: the rank that reads it says so, and runs nothing.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist

import collectives.torch
from collectives import CollectiveError

PORT_OF_ANY = 0
MARK = Path(tempfile.mkdtemp()) / "code was run"


class Payload:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, (str(MARK),)


WORDS = {
    "pickle": pickle.dumps(Payload()),
    "empty": b"",
    "no JSON": b"{",
    "deep": b"[" * 100_000,
    "null": b"null",
    "a number": b"7",
    "an object": b'{"__reduce__": 1}',
    "short": b"[]",
    "other types": b'[["a", "b", "c"]]',
    "long integers": json.dumps([[1 << 80, 2, "x"]]).encode(),
    "no text": b"\xff\xfe\x00",
}


def written(words: bytes) -> BaseException | None:
    """What rank 0 of two gets, where somebody writes this for rank 1."""
    store = dist.TCPStore("127.0.0.1", PORT_OF_ANY, is_master=True, wait_for_workers=False)

    def write() -> None:
        foreign = dist.TCPStore("127.0.0.1", store.port, is_master=False)
        while not (keys := [key for key in foreign.list_keys() if key.endswith("exchange/0/0")]):
            time.sleep(0.01)
        foreign.set(keys[0][:-1] + "1", words)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        dist.init_process_group("collectives", store=store, rank=0, world_size=2, timeout=timedelta(seconds=5))
    except BaseException as e:
        return e
    finally:
        writer.join()
    dist.destroy_process_group()
    return None


def wrong_words() -> tuple[int, int]:
    """Trials, and how many went wrong."""
    wrong = 0
    for name, words in WORDS.items():
        got = written(words)
        told = "torch's store has no record of rank 1's" in str(got)
        if not isinstance(got, CollectiveError) or not told or MARK.exists():
            wrong += 1
            print(f"{name}: {got!r}, code was run: {MARK.exists()}")
    return len(WORDS), wrong


class Inner(NamedTuple):
    place: tuple[str, int]
    raw: bytes | None


class Outer(NamedTuple):
    name: str
    inner: list[Inner]
    cores: frozenset[int]
    rules: dict[str, str]
    ready: bool


def mutated(trials: int) -> tuple[int, int]:
    """Records that come back as they were, and random changes of them: a record of the same class, or ValueError."""
    from collectives.torch import records

    chance, wrong = random.Random(7), 0
    for i in range(trials):
        inner = [
            Inner((f"n{j}", chance.randrange(-5, 5)), chance.choice([None, chance.randbytes(3)])) for j in range(2)
        ]
        record = Outer("é", inner, frozenset([1, i]), {"a": "b"}, bool(i % 2))
        data = bytearray(records.encode(record))
        if records.decode(Outer, bytes(data)) != record:
            wrong += 1
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.choice(b'[]{},:"0179aetnx-. \xff')
        try:
            found = records.decode(Outer, bytes(data))
        except ValueError:
            continue
        if records.decode(Outer, records.encode(found)) != found or not isinstance(found.inner, list):
            wrong += 1
    return trials, wrong


if __name__ == "__main__":
    assert collectives.torch.NAME == "collectives"
    for test in (wrong_words, lambda: mutated(5_000)):
        print("attack: {} trials, {} wrong".format(*test()), flush=True)
    sys.exit()
