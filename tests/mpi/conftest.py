"""Tests that run on all ranks: one rank's output, and an end for all when one rank fails."""

import faulthandler
import os
import sys

import numpy as np
import pytest
from mpi4py import MPI

import collectives

WORLD = MPI.COMM_WORLD
faulthandler.enable()


def pytest_configure(config):
    config.option.with_mpi = True  # where pytest-mpi is installed, it would skip everything in a directory named mpi


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session):
    if WORLD.rank:
        session.config.pluginmanager.getplugin("terminalreporter")._tw._file = open(os.devnull, "w")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """A rank that fails a test does not reach the next one: end all, rather than let the others wait for it."""
    outcome = yield
    report = outcome.get_result()
    if report.failed and WORLD.size > 1:
        where = f"rank {WORLD.rank} of {WORLD.size}, {item.nodeid}, {report.when}"
        item.config.pluginmanager.getplugin("capturemanager").suspend_global_capture()
        sys.stderr.write(f"--- {where}:\n{report.longreprtext}\n")
        sys.stderr.flush()
        WORLD.Abort(1)


@pytest.fixture(autouse=True)
def _seeded():
    np.random.seed(12345 + WORLD.rank)


@pytest.fixture(scope="session")
def world():
    """A communicator of ours over all ranks."""
    comm = collectives.Communicator(WORLD)
    yield comm
    comm.Free()
