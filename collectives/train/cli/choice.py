"""A strategy as a command line names it: its name, and values for the parameters of its constructor."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..strategies import Strategy
from ..strategies.pattern import Pattern
from ..strategies.registry import STRATEGIES, find

#: Types of parameters that a text can give, in the order in which they are tried.
KINDS: dict[type, str] = {type(None): "none", bool: "true|false", int: "INT", float: "NUMBER", str: "NAME"}
WORDS = {"true": True, "false": False}
WIDTH = 116
FORM = "NAME[:OPTION=VALUE]..."


class Option(NamedTuple):
    """A parameter of a constructor: the `KINDS` of its values, and its default, or `inspect.Parameter.empty`."""

    name: str
    kinds: tuple[type, ...]
    default: Any

    @property
    def form(self) -> str:
        """How it is given, ``every=INT (8)`` for example: with its default if it has one."""
        given = f"{self.name}={'|'.join(KINDS[kind] for kind in self.kinds)}"
        if self.default is inspect.Parameter.empty:
            return f"{given} (must be given)"
        plain = self.default is None or isinstance(self.default, bool)
        return f"{given} ({str(self.default).lower() if plain else self.default})"

    def value(self, text: str) -> Any:
        """The value that `text` gives. ValueError, which says what is expected, if it gives none."""
        for kind in self.kinds:
            try:
                return _parsed(kind, text)
            except ValueError:
                continue
        raise ValueError(f"{self.name}={text}: expected {' or '.join(KINDS[kind] for kind in self.kinds)}")


def _parsed(kind: type, text: str) -> Any:
    if kind is bool or kind is type(None):
        words: Mapping[str, Any] = WORDS if kind is bool else {"none": None}
        if text.lower() not in words:
            raise ValueError(text)
        return words[text.lower()]
    return kind(text)


def options(strategy: type[Strategy]) -> dict[str, Option]:
    """The parameters of the constructor that a text can give, by name.

    Where a constructor passes ``**arguments`` on, those of the next base class are among them.
    """
    found: dict[str, Option] = {}
    for function in _constructors(strategy):
        hints = typing.get_type_hints(function)
        for parameter in list(inspect.signature(function).parameters.values())[1:]:
            kinds = _kinds(hints.get(parameter.name, Any))
            named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            if named and kinds:
                found.setdefault(parameter.name, Option(parameter.name, kinds, parameter.default))
    return found


def _constructors(strategy: type[Strategy]) -> Iterator[Any]:
    """The constructor, and those of base classes to which keyword arguments are passed on."""
    for base in strategy.__mro__:
        function = base.__dict__.get("__init__")
        if function is None:
            continue
        if base is not object:
            yield function
        if all(p.kind is not p.VAR_KEYWORD for p in inspect.signature(function).parameters.values()):
            return


def _kinds(hint: Any) -> tuple[type, ...]:
    several = typing.get_origin(hint) in (typing.Union, types.UnionType)
    members = typing.get_args(hint) if several else (hint,)
    found = tuple(kind for kind in KINDS if kind in members)
    return () if found == (type(None),) else found


class Choice(NamedTuple):
    """A strategy by name, with texts by option. ``str(choice)`` is the text that `parse` takes."""

    name: str
    texts: dict[str, str]

    def __str__(self) -> str:
        return ":".join([self.name, *(f"{option}={text}" for option, text in self.texts.items())])

    @classmethod
    def parse(cls, text: str) -> Choice:
        """Parse ``local_sgd:every=8``. ValueError for an unknown strategy, and for an option without a value."""
        name, *given = text.split(":")
        find(name)
        return cls(name, assignments(given))

    def with_known(self, texts: Mapping[str, str]) -> Choice:
        """This strategy with those of more options that it has."""
        known = options(find(self.name))
        return Choice(self.name, {**self.texts, **{name: text for name, text in texts.items() if name in known}})

    def make(self) -> Strategy:
        """A new strategy. ValueError for unknown options, for those that miss, and for values that do not fit."""
        strategy = find(self.name)
        known = options(strategy)
        for name in self.texts:
            if name not in known:
                has = f"it has {', '.join(known)}" if known else "it has none"
                raise ValueError(f"{self.name} has no option {name!r}; {has}")
        for option in known.values():
            if option.default is inspect.Parameter.empty and option.name not in self.texts:
                raise ValueError(f"{self.name} needs {option.form.removesuffix(' (must be given)')}")
        try:
            return strategy(**{name: known[name].value(text) for name, text in self.texts.items()})
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.name}: {error}") from None

    def check(self, size: int) -> None:
        """Raise ValueError as `make`, or if the strategy says by its pattern that it cannot be used on `size` ranks."""
        with contextlib.suppress(NotImplementedError):
            self._pattern(size)

    def pattern(self, size: int) -> Pattern:
        """Who talks to whom on `size` ranks. ValueError as for `make`, and if the strategy does not say."""
        try:
            return self._pattern(size)
        except NotImplementedError as error:
            raise ValueError(f"{self.name}: {error}") from None

    def _pattern(self, size: int) -> Pattern:
        strategy = self.make()
        try:
            return strategy.pattern(size)
        except ValueError as error:
            raise ValueError(f"{self.name} on {size} {'rank' if size == 1 else 'ranks'}: {error}") from None


def assignments(texts: Sequence[str]) -> dict[str, str]:
    """``{"every": "8"}`` of ``["every=8"]``. ValueError for a text of another form, or two for one option."""
    found: dict[str, str] = {}
    for text in texts:
        option, sign, value = text.partition("=")
        if not (option and sign and value):
            raise ValueError(f"{text!r} is not of the form OPTION=VALUE")
        if option in found:
            raise ValueError(f"option {option} is given twice")
        found[option] = value
    return found


def with_options(found: Sequence[Choice], texts: Mapping[str, str]) -> tuple[list[Choice], list[str]]:
    """The strategies, each with those of more options that it has; and the names of options that none of them has."""
    more = [choice.with_known(texts) for choice in found]
    return more, [name for name in texts if not any(name in choice.texts for choice in more)]


def listing() -> str:
    """All strategies: a line with name and summary for each, and below it the options with their defaults."""
    width = max(map(len, STRATEGIES)) + 2
    lines = []
    for name, strategy in STRATEGIES.items():
        summary = (inspect.getdoc(strategy) or "").partition("\n\n")[0].replace("\n", " ")
        lines.append(f"{name:<{width}}{summary}")
        shown = ", ".join(option.form for option in options(strategy).values())
        lines += textwrap.wrap(shown, WIDTH, initial_indent=" " * width, subsequent_indent=" " * width)
    return "\n".join(lines)


def add_choice(parser: Any, default: str | None = None) -> None:
    """Add ``--strategy`` and ``--option``."""
    parser.add_argument(
        "--strategy",
        type=_choice,
        default=None if default is None else Choice(default, {}),
        metavar=FORM,
        help="a strategy by name; 'train --list' prints all, with their options",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="OPTION=VALUE",
        help="an option of the strategy, every=8 for example; may be repeated",
    )


def chosen(args: argparse.Namespace) -> Choice:
    """The strategy of ``--strategy`` and ``--option``. ValueError for options of a wrong form, or given twice."""
    more = assignments(args.option)
    if twice := sorted(more.keys() & args.strategy.texts.keys()):
        raise ValueError(f"option {twice[0]} is given twice")
    return Choice(args.strategy.name, {**args.strategy.texts, **more})


def choices(text: str) -> list[Choice]:
    """An argparse type: strategies, joined by commas; "all" are those of the registry, with their defaults."""
    if text == "all":
        return [Choice(name, {}) for name in STRATEGIES]
    return [_choice(part) for part in text.split(",")]


def _choice(text: str) -> Choice:
    try:
        return Choice.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
