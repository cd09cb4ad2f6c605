"""Why a mesh wins or loses, in sentences."""

from __future__ import annotations

from ..simulation.values import duration
from .links import Links
from .machine import Machine
from .ranking import Advice, Entry, Excess
from .step import Step

__all__ = ["gigabytes", "reasons"]

CLOSE = 1.02  # times the best, from which on a plan counts as slower


def gigabytes(nbytes: float) -> str:
    """Bytes as text."""
    return f"{nbytes / 1e9:.4g} GB"


def reasons(advice: Advice) -> list[str]:
    """A sentence for each mesh of the ranking, then one for each that does not fit."""
    best = advice.ranked[0]
    ranked = [_wins(best), *(_loses(entry, best, advice.machine) for entry in advice.ranked[1:])]
    return ranked + [_too_large(excess, advice.machine) for excess in advice.too_large]


def _wins(entry: Entry) -> str:
    shares = sorted(zip(entry.step, Step._fields, strict=True), reverse=True)
    parts = [f"{name} {part / entry.step.seconds:.0%}" for part, name in shares if part > 0.005 * entry.step.seconds]
    return f"{entry.plan.mesh.form} is the fastest that fits. Its step is {', '.join(parts)}."


def _loses(entry: Entry, best: Entry, machine: Machine) -> str:
    factor = entry.step.seconds / best.step.seconds
    more = {name: mine - theirs for name, mine, theirs in zip(Step._fields, entry.step, best.step, strict=True)}
    worst = max(more, key=lambda name: more[name])
    if factor < CLOSE:
        return f"{entry.plan.mesh.form} is as fast, within {factor - 1:.1%}."
    told = f"{entry.plan.mesh.form} takes {factor:.2f} times as long: {_cause(worst, entry, best, machine)}"
    less = min(more, key=lambda name: more[name])
    gain = f", and {duration(-more[less])} less of {less}" if -more[less] > 0.02 * best.step.seconds else ""
    return f"{told}, {duration(more[worst])} more of {worst}{gain}."


def _cause(term: str, entry: Entry, best: Entry, machine: Machine) -> str:
    plan, mesh = entry.plan, entry.plan.mesh
    if term == "compute":
        again = f"it computes again what recompute={plan.recompute} does not keep"
        return again if plan.recompute != best.plan.recompute else "its busiest stage has more to do than the others"
    if term == "tensor":
        hosts = Links(machine, mesh.pipeline, mesh.data, mesh.tensor).tensor.hosts
        return f"the layers are cut over {mesh.tensor} ranks" + (f" on {hosts} hosts" if hosts > 1 else "")
    if term == "bubble":
        return f"{mesh.pipeline} stages wait for each other with {plan.micro_batches} micro-batches"
    return {
        "transfers": f"activations cross {mesh.pipeline * plan.chunks - 1} borders of stages",
        "data": f"gradients are averaged over {mesh.data} ranks",
        "update": "each rank steps more parameters",
    }[term]


def _too_large(excess: Excess, machine: Machine) -> str:
    needed = excess.memory
    largest, name = max(zip(needed, needed._fields, strict=True))
    return (
        f"{excess.plan.mesh.form} does not fit: with {excess.plan.settings} it needs {gigabytes(needed.total)}, "
        f"{gigabytes(needed.total - machine.memory)} too much; {name} alone {'is' if name == 'optimizer' else 'are'} "
        f"{gigabytes(largest)}."
    )
