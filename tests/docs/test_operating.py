"""docs/operating.md: what is hierarchical by default, and how a user sees which algorithm ran."""

import re

import pages

from collectives.selection.hierarchy import DEFAULT

NAMES = {
    "barrier": ["barrier"], "all-reduce": ["allreduce"], "broadcast": ["bcast"], "reduce": ["reduce"],
    "reduce-scatter": ["reduce_scatter", "reduce_scatter_block"], "all-gather": ["allgather"],
    "all-to-all": ["alltoall"], "gather, scatter, all-gatherv": ["gather", "scatter", "allgatherv"],
}  # fmt: skip
TWO = "each node has at least two ranks"


def section(heading):
    return pages.text_of("operating").split(f"\n## {heading}\n")[1].split("\n## ")[0]


def in_words(rows):
    """What the page says of rows of the table of defaults."""
    if not rows:
        return "never"
    least, most, lanes = rows[0]
    if len(rows) == 2:
        assert rows[1] == (0, None, 2)
        return f"up to {most >> 10} KiB; longer ones if {TWO}"
    if most is not None:
        assert (least, lanes) == (0, 1)
        return f"up to {most >> 10} KiB"
    assert (least > 0) == (lanes == 2)
    return f"from {least >> 10} KiB on, if {TWO}" if least else "always"


def test_what_is_hierarchical_by_default():
    told = dict(re.findall(r"^\| ([\w, -]+) \| (\w.*) \|$", section("One node, several nodes"), re.MULTILINE))
    del told["collective"]
    assert told == {words: in_words(DEFAULT.get(names[0], [])) for words, names in NAMES.items()}
    assert set(DEFAULT) <= {name for names in NAMES.values() for name in names}
    assert DEFAULT["reduce_scatter"] == DEFAULT["reduce_scatter_block"]


def test_which_algorithm_ran(tmp_path):
    """The lines of the page print what their comments say; its commands, run as they stand, name the algorithm."""
    (_, lines), (_, commands) = pages.BLOCK.findall(section("Which algorithm ran"))
    (tmp_path / "prog.py").write_text(
        "import numpy as np\nfrom mpi4py import MPI\nimport collectives\n"
        "comm = collectives.Communicator(MPI.COMM_WORLD)\ncomm.Allreduce(MPI.IN_PLACE, np.ones(10))\n"
        "if comm.rank == 0:\n" + "".join(f"    {line}\n" for line in lines.splitlines())
    )
    program, trace = commands.splitlines()
    said, explained, last = pages.run(program, "openmpi", tmp_path).splitlines()
    assert said == re.search(r"print\(comm\)  # (.*)", lines)[1]
    assert f'"{explained}"' in lines
    assert last == "shm"
    assert re.search(r"^allreduce +shm +1 .* prog\.py:5$", pages.run(trace, "openmpi", tmp_path), re.MULTILINE)
