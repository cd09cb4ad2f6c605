"""Parts of timelines: which of them are put together, and when; and names of files."""

import os

import numpy as np
import pytest
from jobs import mpiexec

from collectives.cli.commands import main
from collectives.trace import perfetto
from collectives.trace.timeline import EVENT, Part, part_file


def part(rank, size, run=0):
    """What a rank has recorded in a run: no calls."""
    about = {
        "rank": rank, "ranks": size, "world_rank": rank, "host": "here", "pid": 1, "names": [], "comms": [],
        "places": [], "failures": [], "moments": [(0, run), (1000, run + 1000)], "estimates": [], "aligned": True,
        "zero": run, "dropped": 0,
    }  # fmt: skip
    return Part(about, np.zeros(0, EVENT))


def saved(path, rank, run, when):
    """Save the part of one of 4 ranks, as if at this time in seconds."""
    part(rank, 4, run).save(part_file(path, rank))
    os.utime(part_file(path, rank), (when, when))


@pytest.mark.parametrize("name", ["t.json", "run[1].json", "t"])
def test_parts_newer_than_the_file_replace_it(name, tmp_path, capsys):
    """The file of an older run is not shown in place of that of the run that failed."""
    path = tmp_path / name
    perfetto.write(path, [part(0, 1)])
    os.utime(path, (2000, 2000))
    saved(path, 0, 1, 1000)
    assert main(["trace", str(path)]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("1 ranks")
    assert told.err == ""
    saved(path, 1, 2, 3000)
    saved(path, 3, 2, 3001)
    (tmp_path / f"{name}.rank5.rank5.part").write_bytes(b"of another file")
    assert main(["trace", str(path)]) == 0
    told = capsys.readouterr()
    assert "4 ranks on 1 host" in told.out
    assert "no account of rank 0, 2" in told.out
    assert told.err == (
        f"put {path} together from the parts of 2 of 4 ranks, which are newer than the file that was there; "
        f"left out those of an older run: {name}.rank0.part\n"
    )
    assert main(["trace", str(path)]) == 0
    assert capsys.readouterr() == (told.out, "")


def test_a_damaged_part_of_an_older_run_hides_nothing(tmp_path, capsys):
    path = tmp_path / "t.json"
    for rank, run, when in ((0, 1, 1000), (1, 2, 3000), (2, 2, 3001), (3, 2, 3002)):
        saved(path, rank, run, when)
    part_file(path, 0).write_bytes(b"half of")
    os.utime(part_file(path, 0), (1000, 1000))
    assert main(["trace", str(path)]) == 0
    told = capsys.readouterr()
    assert "no account of rank 0" in told.out
    assert told.err.endswith("; left out those of an older run: t.json.rank0.part (damaged)\n")
    path.unlink()
    for when in (3001, 4000):  # in the run, and after it
        part_file(path, 2).write_bytes(b"half of")
        os.utime(part_file(path, 2), (when, when))
        assert main(["trace", str(path)]) == 2
        assert "t.json.rank2.part is not a rank's part of a timeline" in capsys.readouterr().err


def test_one_part_of_four(tmp_path, capsys):
    path = tmp_path / "t.json"
    saved(path, 2, 1, 1000)
    assert main(["trace", str(path)]) == 0
    assert "no account of rank 0, 1, 3" in capsys.readouterr().out


RUN = """
import os, sys
import numpy as np
from mpi4py import MPI
import collectives

comm = collectives.Communicator(MPI.COMM_WORLD)
half = comm.Split(comm.rank % 2)
for _ in range(2):
    try:
        with half.trace(sys.argv[1]) as timeline:
            half.Allreduce(np.ones(1), np.empty(1))
            if _ == 0:
                raise KeyError("planted")
    except KeyError:
        assert os.path.exists(f"{timeline.path}.rank{half.rank}.part")
        comm.Barrier()
print(timeline.path.rpartition("/")[2], flush=True)
"""


def test_parts_of_a_communicator_have_a_file_each(tmp_path):
    """They give one path, and none replaces the file of another; a whole file replaces older parts."""
    done = mpiexec("openmpi", 3, "-c", RUN, str(tmp_path / "t.json"), timeout=60)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ["t.json", "t.json", "t.rank1.json"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["t.json", "t.rank1.json"]
    for name, ranks in (("t.json", [0, 2]), ("t.rank1.json", [1])):
        events, about = perfetto.read(tmp_path / name)
        assert [rank["world_rank"] for rank in about["rank"]] == ranks
        assert sum(e["name"] == "allreduce" for e in events) == len(ranks)
