"""The fuzzers for a second each; `make fuzz` gives them an hour. And that they would find what was once wrong."""

import shutil

import fuzz
import pytest


@pytest.mark.long
@pytest.mark.parametrize("name", fuzz.SOURCES)
def test_a_second(tmp_path, name):
    sound, text = fuzz.run(fuzz.build(name, tmp_path), 1, 5)
    assert sound, text
    assert "no crash" in text


def test_both_ends_of_what_is_said():
    assert fuzz.ends("short", 6) == "short"
    assert fuzz.ends("Bus error" + "." * 100 + "1 failed", 18) == "Bus error\n[...]\n.1 failed"


#: Checks without which bad input does harm: (fuzzer, file, what stands there, what a mistaken author would write).
MISTAKES = [
    ("fuzz_schedule", "schedule/program.c", "!layout_ok(layout) || ", "0 && "),
    ("fuzz_schedule", "schedule/program.c", "held == COLL_ALL || (held == block && nblocks == 1)", "1"),
    ("fuzz_schedule", "schedule/executor_new.c", "return m->cuts && !memcmp(", "return 1 || !memcmp("),
    ("fuzz_schedule", "schedule/executor_new.c", "m->segments > 1 && !blockwise && ", "0 && "),
    ("fuzz_schedule", "schedule/executor_new.c", "p->layout.size != endpoint->size || ", ""),
    ("fuzz_schedule", "schedule/executor_new.c", "if (cuts[i] > cuts[i + 1])", "if (0)"),
    ("fuzz_schedule", "schedule/executor.c", "extent(e, c, a->left, a->src", "0 && extent(e, c, a->left, a->src"),
    ("fuzz_node", "node/node.c", " || offset > limit - coll_node_area_bytes()", ""),
    ("fuzz_node", "node/check.c", "return !offset || within(p, offset, bytes);", "return 1;"),
    ("fuzz_node", "node/check.c", " && a->at < STAGING", ""),
    ("fuzz_node", "node/check.c", " && within(p, a->staging, STAGING)", ""),
    ("fuzz_node", "node/check.c", " || !within(p, table, 2 * (rank + 1) * sizeof table)", ""),
    ("fuzz_node", "node/check.c", "!segment || ", ""),
    ("fuzz_node", "node/check.c", "p->first <= p->limit / item && within(p, a->input, (p->first + count) * item)", "1"),
    ("fuzz_node", "node/check.c", "return !folds(c) && c->node->reads_private", "return 1"),
    ("fuzz_node", "node/check.c", "return slots && ", "return "),
    ("fuzz_node", "node/pull.c", "inlined != coll_node_expects_inline(c, q)", "0"),
    ("fuzz_heap", "heap/heap.c", " && h->size == id->size", ""),
    ("fuzz_heap", "heap/pages.c", ".pages = n});\n        put", ".pages = most});\n        put"),
    ("fuzz_heap", "heap/pages.c", "        n += before->pages;\n", ""),
    ("fuzz_heap", "heap/pages.c", "if (before->state == state)", "if (0)"),
    ("fuzz_heap", "heap/blocks.c", "(nbytes - 1) / LINE)) + 1;", "nbytes / LINE));"),
    ("fuzz_heap", "heap/blocks.c", "s->places[word] &= s->places[word] - 1;", "s->places[word] -= s->free == 3;"),
    ("fuzz_heap", "heap/forks.c", "one->born < h->families[i].fork && h->families[i].fork <= one->until", "0"),
    ("fuzz_heap", "heap/forks.c", "MAP_PRIVATE | MAP_FIXED", "MAP_SHARED | MAP_FIXED"),
]  # fmt: skip


def test_the_checks_are_there():
    for name, file, right, _ in MISTAKES:
        assert file in fuzz.SOURCES[name]
        assert (fuzz.ROOT / "csrc" / file).read_text().count(right) == 1, (file, right)


@pytest.mark.slow
@pytest.mark.parametrize("mistake", range(len(MISTAKES)))
def test_they_find_mistakes(tmp_path, mistake):
    name, file, right, wrong = MISTAKES[mistake]
    shutil.copytree(fuzz.ROOT / "csrc", tmp_path, dirs_exist_ok=True)
    text = (tmp_path / file).read_text()
    (tmp_path / file).write_text(text.replace(right, wrong))
    sound, text = fuzz.run(fuzz.build(name, tmp_path, tmp_path), 180, 5)
    assert not sound, text
