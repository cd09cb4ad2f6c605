"""docs/from_gloo.md: its programs print the same on both backends, and its tables name what torch has."""

import re

import pages
import pytest


@pytest.mark.long
def test_every_block(tmp_path):
    pages.execute("from_gloo", "torch", tmp_path)


@pytest.mark.slow
def test_functions_are_those_of_torch(tmp_path):
    used = pages.code([cell for row in pages.rows("from_gloo") for cell in row])
    names = sorted(set(re.findall(r"dist\.(\w+)", used)))
    assert len(names) > 20
    program = f"import torch.distributed as dist; print([name for name in {names} if not hasattr(dist, name)])"
    assert pages.run(f'python -c "{program}"', "torch", tmp_path) == "[]\n"
