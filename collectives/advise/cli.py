"""``python -m collectives advise``: which parallelism for a model on these ranks, with the numbers that say so."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

from ..files import replacing, say_where, unwritable
from ..launch.usage import changed, number_of_bytes, refused, size
from ..simulation.values import duration, part, rate, seconds
from ..train.cli.choice import Choice, choices
from ..train.cli.values import number, stragglers
from .asynchronous import compared
from .machine import MACHINES, Machine
from .memory import Memory
from .model import Model, Precision, Shape, perceptron, shape_of, transformer
from .plan import RECOMPUTE, Choices
from .ranking import Advice, Entry, advise
from .reasons import gigabytes, reasons
from .step import Step

__all__ = ["add_arguments", "count", "main", "operations"]

EPILOG = """\
  python -m collectives advise --parameters 7e9 --batch 512 --ranks 64 --memory 80GB
  python -m collectives advise --layers 96 --width 12288 --heads 96 --batch 1536 --ranks 1536 --zero 0 --top 3
  python -m collectives advise --parameters 1.3B --batch 256 --ranks 32 --machine cpu --memory 64GB --beta 3GB/s
  python -m collectives advise --parameters 350M --batch 256 --ranks 16 --jitter 20% --straggler 3x2

A line is the best plan of a mesh of data x pipeline x tensor ranks. The time of a step is the sum of its terms: passes
of the busiest stage, all-reduces within layers, idle time, transfers between stages, what is not hidden of the
averaging of gradients, the optimizer. Memory is that of the rank that needs the most. docs/advise.md says how each term
is found. Times rank plans, and are no better than the operations per second that you give."""

PRECISIONS = {"mixed": Precision(2, 2, 12), "float32": Precision(4, 4, 8)}
OPTIMIZERS = {"adam": 8.0, "momentum": 4.0, "sgd": 0.0}
COUNTS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
STRATEGIES = "local_sgd,ssp:staleness=3,async_parameter_server"


def count(text: str) -> float:
    """Parse a number of parameters: ``7e9``, ``7B``, ``350M``."""
    digits = text.strip().upper()
    unit = digits[-1:] if digits[-1:] in COUNTS else ""
    return _positive(digits.removesuffix(unit), COUNTS[unit], f"{text!r} is not a number such as 7e9, 7B or 350M")


def operations(text: str) -> float:
    """Parse operations per second: ``156T``, ``156TFLOP/s``, ``1.2e14``."""
    short = text.strip().upper()
    for word in ("FLOP/S", "FLOPS", "FLOP"):
        short = short.removesuffix(word)
    short = short.strip()
    unit = short[-1:] if short[-1:] in ("K", "M", "G", "T", "P") else ""
    factor = 1e15 if unit == "P" else COUNTS[unit]
    return _positive(short.removesuffix(unit), factor, f"{text!r} is not operations per second such as 156TFLOP/s")


def _positive(digits: str, factor: float, complaint: str) -> float:
    try:
        value = float(digits) * factor
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(complaint)
    return value


def _words(known: tuple[str, ...]) -> Any:
    """A parser of words joined by commas."""

    def parse(text: str) -> list[str]:
        for word in text.split(","):
            if word not in known:
                raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(known)}")
        return text.split(",")

    return parse


def _stages(text: str) -> list[int]:
    return [int(word) for word in _words(("0", "1", "2", "3"))(text)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``advise``."""
    from ..train.pipeline.registry import SCHEDULES

    parser.epilog = EPILOG
    integer = number(int, 1)
    add = parser.add_argument_group("the model").add_argument
    add("--parameters", type=count, metavar="N", help="a transformer with about N parameters: 7e9, 7B, 350M")
    add("--layers", type=integer, metavar="L", help="in place of --parameters, with --width: layers of the transformer")
    add("--width", type=integer, metavar="H", help="elements of an activation of a position")
    add("--heads", type=integer, metavar="A", help="heads of the attention (the divisor of H nearest to H / 128)")
    add("--sequence", type=integer, default=2048, metavar="S", help="positions (tokens) of a sample (%(default)s)")
    add("--vocabulary", type=integer, default=51200, metavar="V", help="words of the vocabulary (%(default)s)")
    add("--untied", action="store_true", help="the last layer has weights of its own")
    add("--hidden", type=integer, metavar="F", help="in place of a transformer: a perceptron, H to F to H in a block")
    add("--precision", choices=sorted(PRECISIONS), default="mixed",
        help="types of weights and activations (%(default)s)")  # fmt: skip
    add("--optimizer", choices=sorted(OPTIMIZERS), default="adam", help="the optimizer (%(default)s)")
    add("--gradient-bytes", type=number(float, 0, True), metavar="B",
        help="bytes of an element of a gradient (as of the weights)")  # fmt: skip
    add("--batch", type=integer, required=True, metavar="N", help="samples of a step of all ranks")
    add = parser.add_argument_group("the machine").add_argument
    add("--ranks", type=size, required=True, metavar="P", help="number of ranks")
    add("--machine", choices=sorted(MACHINES), default="dgx-a100",
        help="sets the defaults of the following options (%(default)s)")  # fmt: skip
    add("--per-host", type=integer, metavar="P", help="ranks of a host")
    add("--memory", type=number_of_bytes, metavar="BYTES", help="memory of a rank, e.g. 80GB or 64GiB")
    add("--flops", type=operations, metavar="RATE", help="operations per second that a rank reaches, e.g. 156TFLOP/s")
    add("--alpha", type=seconds, metavar="TIME", help="latency between hosts, e.g. 5us")
    add("--beta", type=rate, metavar="RATE", help="bandwidth of a host's port, each way, e.g. 200GB/s")
    add("--local-alpha", type=seconds, metavar="TIME", help="latency in a host, e.g. 500ns")
    add("--local-beta", type=rate, metavar="RATE", help="bandwidth between ranks of a host, e.g. 300GB/s")
    add("--fold", type=rate, metavar="RATE", help="bandwidth at which a rank adds up what arrives, e.g. 20GB/s")
    add("--update-rate", type=rate, metavar="RATE", help="bandwidth of an optimizer on weights and states, e.g. 20GB/s")
    add("--overhead", type=seconds, metavar="TIME", help="time of a micro-batch's pass beside its operations, e.g. 1ms")
    add = parser.add_argument_group("what may be used").add_argument
    for axis in ("data", "pipeline", "tensor"):
        add(f"--{axis}", type=integer, metavar="P", help=f"number of ranks on the axis {axis} of the mesh (any)")
    add("--micro-batch", type=integer, metavar="N", help="samples of a micro-batch (any)")
    add("--schedules", type=_words(tuple(SCHEDULES)), default=list(Choices.schedules), metavar="NAME,...",
        help="pipeline schedules (1f1b,interleaved_1f1b,zero_bubble)")  # fmt: skip
    add("--recompute", type=_words(RECOMPUTE), default=list(Choices.recompute), metavar="WHAT,...",
        help="what the backward pass computes again: none,attention,block,stage (the first three)")  # fmt: skip
    add("--zero", type=_stages, default=list(Choices.zero), metavar="STAGE,...", help="stages of ZeRO, 0 to 3 (0,1)")
    add("--no-sequence", action="store_true", help="do not divide positions among tensor ranks")
    add = parser.add_argument_group("synchronous or asynchronous").add_argument
    add("--jitter", type=part, default=0.0, metavar="X", help="mean random part of a step: 0.1, 10%% (0)")
    add("--straggler", type=stragglers, default={}, metavar="RANKxFACTOR", help="slower data ranks: 1x4, or 1x4,2x1.5")
    add("--strategy", type=choices, metavar="NAME,...", help=f"strategies to compare ({STRATEGIES})")
    parser.add_argument("--top", type=integer, default=6, metavar="N", help="show the best N meshes (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write all numbers there as well")


def main(args: argparse.Namespace) -> int:
    """Find the best meshes, print them and why, and write the file."""
    with refused():
        if (why := unwritable([args.json])) is not None:
            raise ValueError(why)
        model, machine = _model(args), _machine(args)
        advice = advise(model, machine, args.batch, _choices(args), args.top)
        _print_about(advice)
        _print_tables(advice)
        print("", *reasons(advice)[: 2 * args.top], sep="\n")
        answers = _asynchronous(advice, args)
        print("", *answers, sep="\n")
        if args.json:
            with replacing(args.json) as file:
                json.dump(_values(advice, answers), file, indent=1, allow_nan=False)
            say_where(args.json)
    return 0


def _model(args: argparse.Namespace) -> Model:
    if (args.parameters is None) == (args.layers is None) or (args.layers is None) != (args.width is None):
        raise ValueError("describe the model by --parameters, or by --layers and --width")
    with_adam = PRECISIONS[args.precision]
    masters = with_adam.optimizer - OPTIMIZERS["adam"]
    element = int(with_adam.weight)
    precision = Precision(element, args.gradient_bytes or with_adam.gradient, masters + OPTIMIZERS[args.optimizer])
    if args.hidden is not None:
        if args.layers is None:
            raise ValueError("a perceptron needs --layers, --width and --hidden")
        if option := changed(args, ("heads", "sequence", "vocabulary", "untied")):
            raise ValueError(f"{option} is one of a transformer: a perceptron (--hidden) has none")
        return perceptron(args.layers, args.width, args.hidden, precision, element)
    if args.layers is None:
        shape = shape_of(args.parameters, args.sequence, args.vocabulary)
        if args.heads is not None:
            shape = dataclasses.replace(shape, heads=args.heads)
    else:
        shape = Shape(args.layers, args.width, args.heads or _heads(args.width), args.sequence, args.vocabulary)
    return transformer(shape, precision, element, not args.untied)


def _heads(width: int) -> int:
    """The divisor of a width that is the nearest to its 128th part, the smaller one of two."""
    return min((d for d in range(1, max(1, width // 64) + 1) if width % d == 0), key=lambda d: abs(d - width / 128))


def _machine(args: argparse.Namespace) -> Machine:
    names = [field.name for field in dataclasses.fields(Machine)]
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    return Machine(**{**MACHINES[args.machine], **given})


def _choices(args: argparse.Namespace) -> Choices:
    return Choices(
        args.data, args.pipeline, args.tensor, args.micro_batch, args.schedules, args.recompute, args.zero,
        not args.no_sequence,
    )  # fmt: skip


def _asynchronous(advice: Advice, args: argparse.Namespace) -> list[str]:
    """What other strategies would do for the best mesh: lines of text."""
    best = advice.ranked[0]
    ranks = best.plan.mesh.data
    if ranks == 1:
        if args.straggler or args.strategy:
            raise ValueError("--straggler, --strategy: the best mesh has one data rank, which waits for no other")
        return ["Synchronous: there is one data rank, which waits for no other."]
    strategies: list[Choice] = args.strategy or [Choice.parse(text) for text in STRATEGIES.split(",")]
    reference, found = compared(advice, best, strategies, args.jitter, args.straggler)
    slow = ",".join(f"{rank}x{factor:g}" for rank, factor in args.straggler.items()) or "none"
    head = f"other strategies on its {ranks} data ranks, jitter {args.jitter:.0%}, stragglers {slow}"
    rows = [("strategy", "x allreduce", "waiting", "lag", "it pays")]
    rows.append(("allreduce", "1", f"{reference.waiting:.1%}", f"{reference.lag:.3g}", ""))
    rows += [(str(one.strategy), f"{one.speedup:.3g}", f"{one.pace.waiting:.1%}", f"{one.pace.lag:.3g}", one.verdict)
             for one in found]  # fmt: skip
    return [head, *_aligned(rows, (0, 4))]


# --- text and data --------------------------------------------------------------------------------------------------


def _print_about(advice: Advice) -> None:
    model, machine = advice.model, advice.machine
    precision = model.precision
    print(model.name)
    print(
        f"{model.parameters:.4g} parameters of {precision.weight:g} + {precision.gradient:g} + {precision.optimizer:g} "
        f"bytes; {model.flops:.3g} operations forward for a sample; {advice.batch} samples a step"
    )
    print(
        f"{machine.ranks} ranks, {machine.per_host} a host, of {gigabytes(machine.memory)} and {machine.flops:.3g} "
        f"operations a second; port {duration(machine.alpha)}, {machine.beta / 1e9:g} GB/s; on a host "
        f"{duration(machine.local_alpha)}, {machine.local_beta / 1e9:g} GB/s"
        + (f"; {duration(machine.overhead)} more a pass" if machine.overhead else "")
    )


def _print_tables(advice: Advice) -> None:
    entries = advice.ranked
    scale, unit = (1.0, "s") if entries[0].step.seconds >= 0.5 else (1e3, "ms")
    size_scale, size_unit = (1e-9, "GB") if max(e.memory.total for e in entries) >= 1e9 else (1e-6, "MB")
    print(f"\ntime of a step in {unit}; data x pipeline x tensor ranks, micro-batches x their samples")
    _print_rows(
        ("mesh", "plan", "all", *Step._fields),
        [(e.plan.mesh.form, e.plan.settings, e.step.seconds * scale, *(x * scale for x in e.step))
         for e in entries],
        3 if unit == "s" else 2,
    )  # fmt: skip
    if advice.others:
        print(f"{advice.others} more meshes fit, and are slower")
    print(f"\nmemory of a rank in {size_unit}")
    _print_rows(
        ("mesh", "plan", "all", *Memory._fields),
        [(e.plan.mesh.form, e.plan.settings, e.memory.total * size_scale, *(x * size_scale for x in e.memory))
         for e in entries],
        2,
    )  # fmt: skip


def _print_rows(head: tuple[str, ...], rows: list[tuple[Any, ...]], digits: int) -> None:
    """A table: two columns of text, then numbers."""
    texts = [head, *((*row[:2], *(f"{value:.{digits}f}" for value in row[2:])) for row in rows)]
    print(*_aligned(texts, (0, 1)), sep="\n")


def _aligned(rows: Sequence[tuple[str, ...]], left: tuple[int, ...]) -> list[str]:
    """Lines with aligned columns, of which some are text."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        .rstrip()
        for row in rows
    ]  # fmt: skip


def _values(advice: Advice, answers: list[str]) -> dict[str, Any]:
    """What ``--json`` writes."""
    return {
        "model": {"name": advice.model.name, "parameters": advice.model.parameters, "flops": advice.model.flops,
                  **dataclasses.asdict(advice.model.precision)},
        "machine": {key: None if value == math.inf else value
                    for key, value in dataclasses.asdict(advice.machine).items()},
        "batch": advice.batch,
        "ranked": [_entry(entry) for entry in advice.ranked],
        "too_large": [{**dataclasses.asdict(excess.plan), "memory": excess.memory._asdict(),
                       "bytes": excess.memory.total} for excess in advice.too_large],
        "slower": advice.others,
        "reasons": reasons(advice),
        "asynchronous": answers,
    }  # fmt: skip


def _entry(entry: Entry) -> dict[str, Any]:
    return {
        **dataclasses.asdict(entry.plan),
        "seconds": entry.step.seconds,
        "time": entry.step._asdict(),
        "bytes": entry.memory.total,
        "memory": entry.memory._asdict(),
    }
