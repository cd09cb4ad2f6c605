"""The type stub of the methods that take buffers, made from their signatures and docstrings and from mpi4py's own stub.

``python tests/support/signatures.py`` writes it to collectives/communicator/buffered.pyi.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path

import mpi4py
from mpi4py import MPI

from collectives.arguments.calls import COLLECTIVES, EXCHANGES, Collective
from collectives.communicator import Distgraphcomm

STUB = Path(__file__).resolve().parents[2] / "collectives" / "communicator" / "buffered.pyi"
#: Types of this library's own options.
OPTIONS = {
    "algorithm": "str | None", "deterministic": "bool | None", "timeout": "float | None", "stream": "Any",
    "engine": 'Literal["c", "python"] | None',
}  # fmt: skip
OWNERS = ("Comm", "Intracomm", "Topocomm")
DEFAULTS = {"SUM": MPI.SUM, "INFO_NULL": MPI.INFO_NULL}
HEAD = '''"""Types of the methods that take buffers; written by tests/support/signatures.py, see there."""

from collections.abc import Sequence
from typing import Any, Literal

from mpi4py.MPI import INFO_NULL, SUM, Info, Op, Prequest, Request
from mpi4py.typing import BufSpec, BufSpecB, BufSpecV, BufSpecW, InPlace

from ..arguments.buffers import Average, ReproducibleSum
from .nonblocking import Nonblocking

class Buffered(Nonblocking):
'''
NEIGHBOURS = """
class Neighbours(Nonblocking):
"""


def of_mpi4py() -> dict[str, ast.FunctionDef]:
    """The methods of mpi4py's intracommunicators by name, with or without a topology, as its stub has them."""
    tree = ast.parse(Path(mpi4py.__file__).with_name("MPI.pyi").read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in OWNERS]
    return {method.name: method for kind in classes for method in kind.body if isinstance(method, ast.FunctionDef)}


def stub() -> str:
    """The text of the stub."""
    theirs = of_mpi4py()
    neighbours = [c for c in EXCHANGES.values() if c.name != "alltoallw"]
    written = [
        "".join(_method(c, name, theirs[name]) for c in kinds for name in _names(c))
        for kinds in ([*COLLECTIVES.values(), EXCHANGES["alltoallw"]], neighbours)
    ]
    return HEAD + NEIGHBOURS.join(f"{methods.rstrip()}\n" for methods in written)


def _names(c: Collective) -> Iterator[str]:
    yield from (c.method, f"I{c.name}", f"{c.method}_init")


def _method(c: Collective, name: str, theirs: ast.FunctionDef) -> str:
    types = {argument.arg: ast.unparse(argument.annotation) for argument in theirs.args.args if argument.annotation}
    types["op"] = "Op | Average | ReproducibleSum" if c.averages else "Op | ReproducibleSum"
    written, keywords = [], False
    for parameter in inspect.signature(getattr(Distgraphcomm, name)).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keywords:
            written.append("*")
            keywords = True
        written.append(_parameter(parameter, {**types, **OPTIONS}))
    end = f") -> {ast.unparse(theirs.returns)}:"
    said = (inspect.getdoc(getattr(Distgraphcomm, name)) or "").splitlines()[0]
    body = f'        """{said}"""\n\n'
    line = f"    def {name}({', '.join(written)}{end}\n"
    if len(line) <= 121:
        return line + body
    whole = " ".join(f"{each},".replace(" ", "\0") for each in written)  # no line ends within a parameter
    inside = textwrap.indent(textwrap.fill(whole, 112), " " * 8).replace("\0", " ")
    return f"    def {name}(\n{inside}\n    {end}  # fmt: skip\n{body}"


def _parameter(parameter: inspect.Parameter, types: dict[str, str]) -> str:
    if parameter.name == "self":
        return "self"
    said = f"{parameter.name}: {types[parameter.name]}"
    if parameter.default is parameter.empty:
        return said
    default = next((name for name, value in DEFAULTS.items() if parameter.default is value), repr(parameter.default))
    return f"{said} = {default}"


if __name__ == "__main__":
    STUB.write_text(stub())
