"""docs/from_mpi4py.md and docs/from_nccl_tests.md: their blocks run, and their tables name what there is."""

import argparse
import re

import pages
import pytest
from mpi4py import MPI

import collectives
from collectives import train
from collectives.bench.options import add_options
from collectives.bench.programs import NAMES
from collectives.schedules.registry import algorithms


@pytest.mark.long
@pytest.mark.parametrize("name", ["from_mpi4py", "from_nccl_tests"])
def test_every_block(name, tmp_path):
    pages.execute(name, "openmpi", tmp_path)


@pytest.mark.parametrize("name", ["from_mpi4py", "from_gloo"])
def test_methods_are_those_of_the_classes(name):
    old, ours = ([row[i] for row in pages.rows(name)] for i in (0, 1))
    if name == "from_mpi4py":
        found = set(re.findall(r"comm\.(\w+)", pages.code(old)))
        assert len(found) > 10
        assert {method for method in found if not hasattr(MPI.Distgraphcomm, method)} == set()
    found = set(re.findall(r"comm\.(\w+)", pages.code(ours)))
    assert {method for method in found if not hasattr(collectives.Communicator, method)} == set()
    for module in (collectives, train):
        used = re.findall(rf"\b{module.__name__.rpartition('.')[2]}\.(\w+)", pages.code(ours))
        assert {name for name in used if name not in module.__all__} <= {"torch"}


def test_the_mpi_librarys_classes_have_no_objects_without_waiting():
    """As the page says of mpi4py's."""
    assert not any(hasattr(MPI.Intracomm, name) for name in ("ibcast", "iallreduce"))


def test_programs_and_options_of_bench():
    ours = pages.code([row[1] for row in pages.rows("from_nccl_tests")])
    programs = re.findall(r"bench (\w+)", ours)
    assert len(set(programs)) > 15
    assert set(programs) <= set(NAMES)
    parser = argparse.ArgumentParser(prefix_chars="-", allow_abbrev=False)
    add_options(parser)
    known = set(parser._option_string_actions)
    cells = [code for code in ours.splitlines() if not re.match(r"(mpiexec|python|bench)\b", code)]
    options = {option for code in cells for option in re.findall(r"(?<![\w-])--?[a-zA-Z][a-z-]*", code)}
    assert len(options) > 10
    assert options <= known
    for name in re.findall(r"--algorithm ([a-z]+)", ours):
        assert name == "all" or name in algorithms("allreduce")
    same = next(row for row in pages.rows("from_nccl_tests") if row[1] == "the same" and row[0].startswith("`-m"))
    assert set(re.findall(r"(?<![\w-])-[a-zA-Z]\b", same[0])) <= known
