"""Writes the tables of README.md and the pictures in docs/img, from the results in benchmarks/results.

    python benchmarks/regenerate.py

These commands measure the results anew, which takes about ten minutes on a quiet machine:

    python benchmarks/peers.py --json benchmarks/results/allreduce-2-ranks.json
    python benchmarks/peers.py --collective all --rounds 20 --batch 5 --json benchmarks/results/collectives-2-ranks.json
"""

from __future__ import annotations

import sys
from pathlib import Path

import table

from collectives.bench import curves, plot

RESULTS = table.ROOT / "benchmarks" / "results"
PICTURES = table.ROOT / "docs" / "img"


def main() -> int:
    """Rewrite README.md and the pictures, and print their names."""
    table.main()
    print("README.md")
    for file in draw(RESULTS, PICTURES):
        print(file.relative_to(table.ROOT))
    return 0


def draw(results: Path, pictures: Path) -> list[Path]:
    """Draw a picture NAME.svg for each NAME.json; returns the files of the pictures."""
    pictures.mkdir(parents=True, exist_ok=True)
    made = []
    for file in sorted(results.glob("*.json")):
        made.append(pictures / f"{file.stem}.svg")
        plot.draw([curves.read(file)], made[-1])
    return made


if __name__ == "__main__":
    sys.exit(main())
