"""Writes the tables of README.md, from the results of ``peers.py --json`` in benchmarks/results.

    python benchmarks/peers.py --json benchmarks/results/allreduce-2-ranks.json
    python benchmarks/peers.py --collective all --rounds 20 --batch 5 --json benchmarks/results/collectives-2-ranks.json
    python benchmarks/table.py

A line ``<!-- table: NAME -->`` in README.md stands before the table of benchmarks/results/NAME.json, and
``<!-- end of table -->`` after it; what is between them is replaced.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

import _peers_report as report

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"(?P<begin><!-- table: (?P<name>[\w-]+) -->\n).*?(?P<end><!-- end of table -->)", re.DOTALL)
OURS = ("private", "heap")
PEERS = {"ompi": "Open MPI", "mpich": "MPICH", "impi": "Intel MPI", "gloo": "Gloo"}


def main() -> int:
    """Rewrite README.md."""
    readme = ROOT / "README.md"
    readme.write_text(rewritten(readme.read_text(), ROOT / "benchmarks" / "results"))
    return 0


def rewritten(text: str, folder: Path) -> str:
    """The text with each of its tables written anew."""

    def block(match: re.Match[str]) -> str:
        content = json.loads((folder / f"{match['name']}.json").read_text())
        several = len({record["collective"] for record in content["results"]}) > 1
        return match["begin"] + "\n".join((table_of_all if several else table)(content)) + "\n" + match["end"]

    return BLOCK.sub(block, text)


def table(content: dict[str, Any]) -> list[str]:
    """The lines of the table of the all-reduce: for the smallest number of ranks, out of place, one buffer."""
    ranks = min(record["ranks"] for record in content["results"])
    rows: dict[int, dict[str, list[float]]] = {}
    for record in content["results"]:
        if (record["ranks"], record["place"], record["reuse"]) == (ranks, "out", "one"):
            rows.setdefault(record["bytes"], {})[record["contestant"]] = record["us"]
    lines = [
        "| bytes | private arrays | heap arrays | best of the others | private / best | heap / best |",
        "|--:|--:|--:|:--|--:|--:|",
    ]
    found: dict[str, list[float]] = {name: [] for name in OURS}
    for nbytes, samples in sorted(rows.items()):
        peer = report.best(samples, [name for name in samples if name.split("/")[0] in PEERS])
        if peer is None:
            raise ValueError(f"{nbytes} bytes: nobody to compare with")
        ratios = {name: report.ratio(samples[name], samples[peer]) for name in OURS}
        for name in OURS:
            found[name].append(ratios[name].median)
        times = [micro(samples[name]) for name in OURS]
        cells = [report.size_name(nbytes), *times, f"{micro(samples[peer])}, {peer_name(peer)}"]
        lines.append("| " + " | ".join([*cells, *(f"{ratios[name].median:.2f}" for name in OURS)]) + " |")
    means = [f"{statistics.geometric_mean(found[name]):.2f}" for name in OURS]
    numbers = f"us, medians of {content['rounds']} rounds, ratios taken round by round"
    below = conditions(content, ranks, "All-reduce of float32", numbers)
    lines += [f"| geometric mean | | | | {means[0]} | {means[1]} |", "", below]
    return lines


def table_of_all(content: dict[str, Any]) -> list[str]:
    """The lines of the table of several collectives: ratios to the best of the others, by bytes."""
    found: dict[str, dict[int, dict[str, list[float]]]] = {}
    for record in content["results"]:
        of_size = found.setdefault(record["collective"], {}).setdefault(record["bytes"], {})
        of_size[record["contestant"]] = record["us"]
    sizes = sorted({nbytes for samples in found.values() for nbytes in samples if nbytes})
    names = ["collective", *map(report.size_name, sizes), "geometric mean"]
    lines = ["| " + " | ".join(names) + " |", "|:--" + "|--:" * (len(sizes) + 1) + "|"]
    for collective, by_size in found.items():
        ratios = {nbytes: ratio_to_best(samples) for nbytes, samples in by_size.items()}
        cells = [f"{ratios[nbytes]:.2f}" if nbytes in ratios else "" for nbytes in sizes]
        mean = statistics.geometric_mean(list(ratios.values()))
        lines.append("| " + " | ".join([collective, *cells, f"{mean:.2f}"]) + " |")
    ranks = content["results"][0]["ranks"]
    numbers = "our time on private arrays divided by that of the best of the others, round by round, median of"
    return [*lines, "", conditions(content, ranks, "Float32", f"{numbers} {content['rounds']} rounds")]


def ratio_to_best(samples: dict[str, list[float]]) -> float:
    """Median over rounds of our time to that of the best of the others."""
    peer = report.best(samples, [name for name in samples if name.split("/")[0] in PEERS])
    if peer is None:
        raise ValueError("nobody to compare with")
    return report.ratio(samples["private"], samples[peer]).median


def micro(us: list[float]) -> str:
    """The median, in microseconds, with three digits."""
    return report.micro(statistics.median(us) * 1e-6)


def peer_name(contestant: str) -> str:
    """Name of the library, and mpi4py's thread level if the library takes part at two levels."""
    library, _, level = contestant.partition("/")
    return PEERS[library] + {"m": ", multiple", "s": ", single"}.get(level, "")


def conditions(content: dict[str, Any], ranks: int, what: str, numbers: str) -> str:
    """The line below a table: what was measured, what its numbers are, on which machine, with which libraries."""
    machine = content["machine"]
    caches = ", ".join(f"{level} {size >> 10} KiB" for level, size in machine["caches"].items())
    jobs = [job for job in content["contestants"] if job["ranks"] == ranks]
    others = {job["software"]["library"] for job in jobs if job["contestant"] != "ours"}
    ours = {job["software"]["library"] for job in jobs if job["contestant"] == "ours"}
    return (
        f"{what}, SUM, through Python, {ranks} ranks; {numbers}. Machine: {machine['cpu']}, {machine['cores']} cores,"
        f" {caches}, {machine['system'].split('-')[0]}. Others: {', '.join(map(short, sorted(others)))}, each MPI at"
        f" mpi4py's thread levels multiple and single; ours over {', '.join(map(short, ours))}."
    )


def short(version: str) -> str:
    """MPICH Version: 5.0.2 -> MPICH 5.0.2."""
    return version.replace("(R)", "").replace(" Library", "").replace("Version: ", "").replace("MPI v", "MPI ")


if __name__ == "__main__":
    sys.exit(main())
