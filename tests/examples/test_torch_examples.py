"""The programs in examples/ that need torch: on two and four ranks, with the picture that matplotlib draws."""

import re

import pytest
from jobs import ROOT, mpiexec, torch_for

PAGE = (ROOT / "docs/examples.md").read_text()


@pytest.mark.quick("ddp-2")
@pytest.mark.parametrize(("name", "ranks"), [("ddp", 2), ("ddp", 4), ("fsdp2", 4)])
def test_example(name, ranks, tmp_path):
    done = mpiexec(
        "openmpi", ranks, f"examples/{name}.py", "--out", str(tmp_path), timeout=120, env=torch_for("openmpi")
    )
    assert done.returncode == 0, done.stderr
    shown = re.search(
        rf"^mpiexec -n 4 python examples/{name}\.py.*?```text\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE
    )
    plain = [re.sub(r"\d+(\.\d+)?", "N", text) for text in (done.stdout, shown[1])]
    assert plain[0] == plain[1]
    assert (tmp_path / f"{name}.png").stat().st_size > 5000
