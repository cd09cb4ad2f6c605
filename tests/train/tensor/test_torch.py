"""torch's cut layers and the transformer on real ranks, by programs in the folder ../programs."""

import re

import pytest
from jobs import mpiexec

FILES = [f"tests/train/programs/{name}.py" for name in ("tensor_layers", "tensor_transformer")]


@pytest.mark.long
@pytest.mark.parametrize("ranks", [3, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (1, 2, 4))])
def test_cut_layers_compute_what_whole_ones_do(ranks):
    done = mpiexec("torch", ranks, "-m", "pytest", "-q", "-p", "no:cacheprovider", *FILES, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"\d+ passed", done.stdout)) == ranks
    assert ranks == 1 or "skipped" not in done.stdout
