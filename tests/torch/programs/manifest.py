"""Run torch's own distributed tests on Gloo and on `collectives`, and write down what each of them did.

    python tests/torch/programs/manifest.py                  both backends, 3 ranks; writes manifest.json and the page
    python tests/torch/programs/manifest.py --backends gloo  one of them; what is known of the other stays
    python tests/torch/programs/manifest.py --again          only what did not pass last time
    python tests/torch/programs/manifest.py --tests test_a,test_b      only these, with the whole message of what fails

The ranks are those of one mpiexec (Open MPI, ``.venvs/torch``), which runs test after test, each in a new process
group. A test that fails, crashes, or does not end within LIMIT seconds ends the job, and the next job begins behind
it. Tests that ask for 4 ranks are run on 4 afterwards. See ``adapted.py`` for what is changed about the tests.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
BIN = ROOT / ".venvs" / "torch" / "bin"
SUITE = Path(__file__).with_name("suite.py")
RESULTS = Path(__file__).with_name("manifest.json")
PAGE = ROOT / "docs" / "torch-tests.md"
BACKENDS = ("gloo", "collectives")
LIMIT = 300.0  # seconds that a test may take; the longest takes about 30 alone on two cores
START = 120.0  # seconds until the first test begins
GRACE = 3.0  # seconds for the other ranks' reports, once one has failed
VARIABLES = {
    "PYTHONPATH": str(ROOT), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", "TORCH_CPP_LOG_LEVEL": "ERROR",
}  # fmt: skip

Result = dict[str, Any]  # state (passed, skipped, failed, hung, crashed), why, marked, seconds, ranks


def names() -> list[str]:
    """All tests of the installed torch."""
    done = subprocess.run(
        [BIN / "python", SUITE, "names"], env={**os.environ, **VARIABLES}, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def version() -> str:
    """Of the installed torch."""
    command = [BIN / "python", "-c", "import torch; print(torch.__version__)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


class Job:
    """Ranks that run tests one after the other."""

    def __init__(self, folder: Path, backend: str, ranks: int, first: int):
        self.folder, self.ranks, self.first = folder, ranks, first
        for file in folder.glob("*.jsonl"):
            file.unlink()
        self.log = folder / "log"
        command = [BIN / "mpiexec", "--oversubscribe", "-n", str(ranks), BIN / "python", SUITE]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, folder, backend, str(first)], env={**os.environ, **VARIABLES}, cwd=folder,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def reports(self) -> dict[int, dict[int, Result]]:
        """What ranks have said of each test so far: index, rank, the last line."""
        found: dict[int, dict[int, Result]] = {}
        for rank in range(self.ranks):
            with contextlib.suppress(FileNotFoundError):
                for line in (self.folder / f"{rank}.jsonl").read_text().splitlines(keepends=True):
                    if line.endswith("\n"):
                        report = json.loads(line)
                        found.setdefault(report["index"], {})[rank] = report
        return found

    def follow(self, tests: Sequence[str]) -> Iterator[tuple[int, Result]]:
        """The result of each test, until the last one has ended or one has spoilt the job."""
        index, since, limit = self.first, time.monotonic(), START
        while index < len(tests):
            time.sleep(0.05)
            of_all = self.reports().get(index, {})
            ended = [report for report in of_all.values() if report["state"] != "begun"]
            left = self.process.poll() is not None
            if any(report["state"] == "failed" for report in ended) and not left and len(ended) < self.ranks:
                limit = min(limit, time.monotonic() - since + GRACE)
            if not (len(ended) == self.ranks or left or time.monotonic() - since > limit):
                if of_all and limit == START:
                    since, limit = time.monotonic(), LIMIT
                continue
            result = self.judge(ended, left)
            yield index, result
            if result["state"] not in ("passed", "skipped"):
                return
            index, since, limit = index + 1, time.monotonic(), LIMIT

    def judge(self, ended: Sequence[Result], left: bool) -> Result:
        """One result of what the ranks reported, and of how the job was then."""
        states = {report["state"] for report in ended}
        found: Result = {"ranks": self.ranks, "seconds": max((r["seconds"] for r in ended), default=None)}
        found["marked"] = ended[0]["marked"] if ended else []
        if "failed" in states:
            why = next(report["why"] for report in ended if report["state"] == "failed")
            return {**found, "state": "failed", "why": why}
        if len(ended) < self.ranks:
            lines = [line for line in self.log.read_text(errors="replace").splitlines() if "USDT" not in line]
            return {**found, "state": "crashed" if left else "hung", "why": "\n".join(lines)[-6000:]}
        why = next((report["why"] for report in ended if report["state"] == "skipped"), "")
        return {**found, "state": "passed" if "passed" in states else "skipped", "why": why}

    def end(self, wait: float) -> int | None:
        """End the job, after it has had time to end itself; its exit status, None where it had to be killed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(wait)
        for sign in (signal.SIGTERM, signal.SIGKILL):
            os.killpg(self.process.pid, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
                break
        return None


def run(backend: str, tests: Sequence[str], ranks: int, quiet: bool = False) -> dict[str, Result]:
    """Run tests on a backend; what each did. A job that ends badly after its last test is that test's failure."""
    results: dict[str, Result] = {}
    with tempfile.TemporaryDirectory() as name:
        folder, first = Path(name), 0
        (folder / "tests.json").write_text(json.dumps(list(tests)))
        while first < len(tests):
            job = Job(folder, backend, ranks, first)
            try:
                for index, result in job.follow(tests):
                    results[tests[index]], first = result, index + 1
                    if not quiet:
                        print(f"{backend:12}{result['state']:9}{tests[index]}", last_line(result["why"]), flush=True)
            except BaseException:
                job.end(0)
                raise
            status = job.end(60 if first == len(tests) and result["state"] in ("passed", "skipped") else 0)
            words = job.log.read_text(errors="replace")
            aborted = "MPI_Abort instead of MPI_Finalize" in words  # a call of an earlier test timed out, as it should
            if first == len(tests) and result["state"] == "passed" and status != 0 and not aborted:
                result.update(state="crashed", why=f"the job ended with {status}: {words[-2000:]}")
    return results


def run_all(backend: str, tests: Sequence[str], ranks: int = 3) -> dict[str, Result]:
    """Run tests on 3 ranks, and those that ask for more on 4."""
    results = run(backend, tests, ranks)
    more = [name for name, found in results.items() if found["state"] == "skipped" and "world" in found["why"].lower()]
    return results | run(backend, more, ranks + 1)


# --- the page -----------------------------------------------------------------------------------------------------


def last_line(text: str) -> str:
    """The end of a message, where an exception says what it is."""
    lines = [line for line in text.splitlines() if line.strip() and "PYTORCH_PRINT_REPRO" not in line]
    errors = [line for line in lines if "Error: " in line or "Exception: " in line]
    return (errors or lines or [""])[-1].strip()[:160]


def missing(results: dict[str, dict[str, Result]]) -> list[str]:
    """Tests that pass on Gloo and not on ours."""
    gloo, ours = results["gloo"], results["collectives"]
    return [name for name, found in gloo.items() if found["state"] == "passed" and state(ours, name) != "passed"]


def state(results: dict[str, Result], name: str) -> str:
    """What a test did, "not run" where it was not."""
    return results.get(name, {}).get("state", "not run")


HEAD = """# torch's own distributed tests

`torch/testing/_internal/distributed/distributed_test.py` of torch {version}, on Gloo and on `collectives`: the same
test on the same ranks, under `mpiexec`. Made by `python tests/torch/programs/manifest.py`, which also writes
[manifest.json](../tests/torch/programs/manifest.json), with the whole message of what failed.

No test is skipped for the backend's name. The last column but one has what was taken off a test: **backend**, a
condition on that name; **gpu**, a demand for GPUs, whose place CPU memory takes
(`tests/torch/programs/cpu_device.py`); **linux**, that PyTorch has switched the test off on Linux; **worldsize**, a
demand for 8 ranks of every backend but MPI. Such a test may fail on CPU memory for a good reason; what passes on Gloo
must pass here.

| | passed | skipped | failed | hung | crashed |
|---|---|---|---|---|---|
"""


def page(data: dict[str, Any]) -> str:
    """The readable form of the manifest."""
    results = data["results"]
    text = HEAD.format(version=data["torch"])
    for backend in BACKENDS:
        count = Counter(found["state"] for found in results.get(backend, {}).values())
        text += f"| {backend} | " + " | ".join(str(count[s]) for s in count_states()) + " |\n"
    gloo, ours = (results.get(backend, {}) for backend in BACKENDS)
    if gloo and ours:
        only = [name for name in ours if state(ours, name) == "passed" != state(gloo, name)]
        text += f"\nPassed here and not on Gloo: {len(only)}. Passed on Gloo and not here: {len(missing(results))}.\n"
    text += "\n| test | Gloo | collectives | ranks | taken off | why not |\n|---|---|---|---|---|---|\n"
    for name in sorted(gloo.keys() | ours.keys()):
        known = ours.get(name) or gloo[name]
        bad = next((f[name] for f in (ours, gloo) if name in f and f[name]["state"] != "passed"), {"why": ""})
        why = last_line(bad["why"]).replace("|", "\\|").replace(str(ROOT), ".")
        columns = [f"`{name}`", state(gloo, name), state(ours, name), known["ranks"], ", ".join(known["marked"]), why]
        text += "| " + " | ".join(map(str, columns)) + " |\n"
    return text


def count_states() -> tuple[str, ...]:
    """The states of a test, in the order of the columns."""
    return ("passed", "skipped", "failed", "hung", "crashed")


def stored() -> dict[str, Any]:
    """The manifest as it is kept."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {"results": {}}


def main() -> int:
    """Run what is asked for; 1 when a test passes on Gloo and not on ours."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default=",".join(BACKENDS), help="gloo, collectives, or both")
    parser.add_argument("--tests", default="", help="names between commas")
    parser.add_argument("--again", action="store_true", help="only what did not pass last time")
    parser.add_argument("--ranks", type=int, default=3)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the ranks end too
    everything, data = names(), stored()
    tests = args.tests.split(",") if args.tests else everything
    if unknown := set(tests) - set(everything):
        parser.error(f"--tests: torch has no {', '.join(sorted(unknown))}")
    for backend in args.backends.split(","):
        known = data["results"].get(backend, {})
        chosen = [name for name in tests if not (args.again and state(known, name) == "passed")]
        found = run_all(backend, chosen, args.ranks)
        if args.tests:
            print(*(f"{name}: {r['state']}\n{r['why']}" for name, r in found.items()), sep="\n")
        both = known | found
        data = stored()  # the other backend's may have been written meanwhile
        data["results"][backend] = {name: both[name] for name in everything if name in both}
        data["torch"] = version()
        RESULTS.write_text(json.dumps(data, indent=1) + "\n")
        PAGE.write_text(page(data))
    return int(set(BACKENDS) <= data["results"].keys() and bool(missing(data["results"])))


if __name__ == "__main__":
    sys.exit(main())
