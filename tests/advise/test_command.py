"""``python -m collectives advise``: its table, its sentences, its file, and what it says to bad input."""

import argparse
import json
import re

import pytest

from collectives.advise.cli import count, operations
from collectives.cli.commands import main

SMALL = ("--layers", "8", "--width", "512", "--sequence", "256", "--vocabulary", "1000", "--batch", "32")
RIG = ("--ranks", "8", "--memory", "4GB", "--per-host", "4", "--beta", "10GB/s")


def run(capsys, *words):
    code = main(["advise", *words])
    return code, capsys.readouterr().out


def refused(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(["advise", *words])
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_the_terms_add_up(capsys, tmp_path):
    file = tmp_path / "advice.json"
    code, text = run(capsys, *SMALL, *RIG, "--top", "5", "--json", str(file))
    assert code == 0
    told = json.loads(file.read_text())
    assert len(told["ranked"]) == 5
    rows = [line.split() for line in text.splitlines() if re.match(r"\d+x\d+x\d+ +\d+ x ", line)]
    assert len(rows) == 10
    assert "time of a step in ms" in text
    assert "memory of a rank in GB" in text or "memory of a rank in MB" in text
    size = 1e9 if "memory of a rank in GB" in text else 1e6
    for time, memory, entry in zip(rows[:5], rows[5:], told["ranked"], strict=True):
        assert time[0] == memory[0] == "x".join(str(entry["mesh"][axis]) for axis in ("data", "pipeline", "tensor"))
        assert sum(entry["time"].values()) == pytest.approx(entry["seconds"])
        assert sum(entry["memory"].values()) == pytest.approx(entry["bytes"])
        numbers = [1e3 * value for value in (entry["seconds"], *entry["time"].values())]
        assert list(map(float, time[-7:])) == pytest.approx(numbers, abs=0.0051)
        numbers = [value / size for value in (entry["bytes"], *entry["memory"].values())]
        assert list(map(float, memory[-6:])) == pytest.approx(numbers, abs=0.0051)
    seconds = [entry["seconds"] for entry in told["ranked"]]
    assert seconds == sorted(seconds)
    assert told["reasons"][0] in text
    assert told["model"]["parameters"] == 12 * 8 * 512**2 + 13 * 8 * 512 + (1000 + 256 + 2) * 512
    assert told["machine"]["beta"] == 10e9


def test_of_parameters_only(capsys):
    code, text = run(capsys, "--parameters", "125M", "--batch", "64", "--ranks", "8", "--memory", "80GB", "--top", "2")
    assert code == 0
    assert "transformer of 4 layers, width 1152, 18 heads, 2048 positions, 51200 words\n1.251e+08 parameters" in text
    assert "is the fastest that fits" in text
    assert re.search(r"^async_parameter_server +[\d.]+ +[\d.]+% +[\d.]+  (no|if it needs)", text, re.MULTILINE)


@pytest.mark.parametrize(("width", "heads"), [(1600, 10), (512, 4), (1009, 1), (60, 1), (192, 1), (384, 3)])
def test_default_heads_divide_the_width(width, heads, capsys):
    code, text = run(capsys, *SMALL, *RIG, "--width", str(width), "--top", "1")
    assert code == 0
    assert f"width {width}, {heads} heads" in text


def test_stages_of_zero_mean_nothing_on_one_data_rank(capsys):
    for stage in "123":
        code, text = run(capsys, *SMALL, *RIG, "--zero", stage, "--data", "1", "--top", "1")
        assert code == 0
        assert "zero" not in re.search(r"^1x.*$", text, re.MULTILINE)[0].replace("zero_bubble", "")


def test_a_perceptron(capsys):
    words = ("--layers", "8", "--width", "960", "--hidden", "32", "--precision", "float32", "--optimizer", "momentum")
    code, text = run(capsys, *words, "--batch", "128", *RIG, "--machine", "cpu")
    assert code == 0
    assert "perceptron of 8 blocks, width 960, hidden 32\n4.995e+05 parameters of 4 + 4 + 4 bytes" in text


def test_what_does_not_fit_is_named(capsys):
    code, text = run(capsys, *SMALL, "--ranks", "8", "--memory", "200MB", "--recompute", "none", "--zero", "0")
    assert code == 0
    assert re.search(r"8x1x1 does not fit: with .* it needs [\d.]+ GB, [\d.]+ GB too much", text)


def test_one_data_rank_waits_for_nobody(capsys):
    code, text = run(capsys, *SMALL, *RIG, "--data", "1")
    assert code == 0
    assert "there is one data rank" in text


def test_stragglers_and_strategies(capsys):
    code, text = run(capsys, *SMALL, *RIG, "--data", "8", "--straggler", "1x4", "--strategy", "ssp:staleness=3")
    assert code == 0
    assert "8 data ranks, jitter 0%, stragglers 1x4" in text
    assert re.search(r"^ssp:staleness=3 +[\d.]+ +[\d.]+% +[\d.]+  (no|if it needs)", text, re.MULTILINE)
    assert "local_sgd" not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--ranks", "0"), "0 ranks: there must be at least 1"),
        (("--ranks", "many"), "'many' is not a number of ranks"),
        (("--memory", "1MB"), "nothing fits 0.001 GB: the smallest, data="),
        (("--memory", "0"), "memory: expected a number above 0, not 0"),
        (("--memory", "80 apples"), "'80 apples' is not a number of bytes"),
        (("--flops", "1e-300"), "takes more than 1e+15 s: a rate of the machine is too low"),
        (("--update-rate", "1e-290B/s"), "takes more than 1e+15 s"),
        (("--overhead", "1e300s"), "takes more than 1e+15 s"),
        (("--zero", "2", "--data", "2", "--pipeline", "4"), "ZeRO, of which 2 and 3 need a mesh without a pipeline"),
        (("--flops", "fast"), "'fast' is not operations per second such as 156TFLOP/s"),
        (("--alpha", "2 weeks"), "'2 weeks' is not a time"),
        (("--beta", "12GB"), "'12GB' is not a rate"),
        (("--batch", "0"), "0 is not at least 1"),
        (("--heads", "3"), "3 do not divide a width of 512"),
        (("--zero", "5"), "'5' is none of 0, 1, 2, 3"),
        (("--recompute", "all"), "'all' is none of none, attention, block, stage"),
        (("--schedules", "fifo"), "'fifo' is none of gpipe"),
        (("--tensor", "3"), "no mesh of 8 ranks has tensor=3"),
        (("--strategy", "nothing"), "unknown"),
        (("--straggler", "9x2", "--data", "8"), "straggler 9"),
        (("--straggler", "1x2", "--data", "1"), "one data rank"),
        (("--parameters", "7B"), "describe the model by --parameters, or by --layers and --width"),
        (("--json", "/nowhere/file"), "/nowhere/file"),
    ],
)
def test_bad_input(capsys, words, message):
    """Later options count in place of earlier ones."""
    assert message in refused(capsys, *SMALL, *RIG, *words)


def test_a_model_must_be_described(capsys):
    assert "describe the model" in refused(capsys, "--batch", "8", "--ranks", "8")
    assert "describe the model" in refused(capsys, "--layers", "2", "--batch", "8", "--ranks", "8")
    assert "less than one layer" in refused(capsys, "--parameters", "10", "--batch", "8", "--ranks", "8")
    assert "a perceptron needs" in refused(
        capsys, "--parameters", "7e9", "--hidden", "4", "--batch", "8", "--ranks", "8"
    )


@pytest.mark.parametrize("words", [("--sequence", "8192"), ("--heads", "7"), ("--vocabulary", "99"), ("--untied",)])
def test_a_perceptron_has_no_options_of_a_transformer(capsys, words):
    model = ("--layers", "2", "--width", "64", "--hidden", "32", "--batch", "8", "--ranks", "2")
    assert f"{words[0]} is one of a transformer" in refused(capsys, *model, *words)


@pytest.mark.parametrize(("text", "value"), [("7e9", 7e9), ("7B", 7e9), ("1.3b", 1.3e9), ("350M", 350e6), ("1T", 1e12)])
def test_counts(text, value):
    assert count(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("156T", 156e12), ("156TFLOP/s", 156e12), ("50 GFLOPS", 50e9), ("1e14", 1e14), ("2PFLOP/s", 2e15)],
)
def test_operations(text, value):
    assert operations(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "seven", "-1", "0", "nan", "inf", "7X"])
def test_bad_numbers(text):
    for parse in (count, operations):
        with pytest.raises(argparse.ArgumentTypeError, match="is not"):
            parse(text)
