"""The tables in README.md are those of the results in the repository."""

import sys

import pytest
from jobs import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import table  # noqa: E402

README = (ROOT / "README.md").read_text()


def content(**samples):
    """Results of one size, in us."""
    return {
        "machine": {"cpu": "A processor", "cores": 2, "caches": {"L2": 1 << 20}, "system": "Linux 6.1-x x86_64"},
        "rounds": 3,
        "contestants": [{"contestant": "ours", "ranks": 2, "software": {"library": "Open MPI v5.0.11"}},
                        {"contestant": "gloo", "ranks": 2, "software": {"library": "MPICH Version: 5.0.2"}}],
        "results": [{"ranks": 2, "place": "out", "reuse": "one", "collective": "allreduce", "bytes": 1024,
                     "contestant": name.replace("_", "/"),
                     "us": us} for name, us in samples.items()],
    }  # fmt: skip


def test_readme_has_the_results_of_the_repository():
    assert [match["name"] for match in table.BLOCK.finditer(README)] == ["allreduce-2-ranks", "collectives-2-ranks"]
    assert table.rewritten(README, ROOT / "benchmarks/results") == README


def test_what_is_between_the_marks_is_replaced(tmp_path):
    (tmp_path / "a.json").write_text((ROOT / "benchmarks/results/allreduce-2-ranks.json").read_text())
    text = "before\n<!-- table: a -->\nold\n<!-- end of table -->\nafter\n"
    once = table.rewritten(text, tmp_path)
    assert once.startswith("before\n<!-- table: a -->\n| bytes")
    assert once.endswith(".\n<!-- end of table -->\nafter\n")
    assert "old" not in once
    assert table.rewritten(once, tmp_path) == once


def test_a_row():
    """The best has the lowest median; ratios are taken round by round."""
    made = content(private=[1, 2, 3], heap=[1, 1, 1], ompi_m=[4, 4, 4], mpich_s=[2, 4, 3], copy=[0.1, 0.1, 0.1])
    lines = table.table(made)
    assert lines[2] == "| 1Ki | 2.00 | 1.00 | 3.00, MPICH, single | 0.50 | 0.33 |"
    assert lines[3] == "| geometric mean | | | | 0.50 | 0.33 |"
    assert "Machine: A processor, 2 cores, L2 1024 KiB, Linux 6.1. Others: MPICH 5.0.2," in lines[5]
    assert lines[5].endswith("ours over Open MPI 5.0.11.")


def test_rows_of_collectives():
    made = content(private=[1, 2, 3], ompi_m=[4, 4, 4], mpich_s=[2, 4, 3])
    made["results"] += [{**record, "collective": "bcast", "bytes": 64} for record in made["results"]]
    made["results"] += [{**r, "bytes": 1024, "us": [2 * u for u in r["us"]]} for r in made["results"][3:]]
    lines = table.table_of_all(made)
    assert "our time" in lines[-1]
    assert "; us" not in lines[-1]
    assert lines[0] == "| collective | 64 | 1Ki | geometric mean |"
    assert lines[2:4] == ["| allreduce |  | 0.50 | 0.50 |", "| bcast | 0.50 | 0.50 | 0.50 |"]


def test_nobody_to_compare_with():
    with pytest.raises(ValueError, match="1024 bytes"):
        table.table(content(private=[1], heap=[1], copy=[1]))
