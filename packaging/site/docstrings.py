"""What the pages of the API show that is not in docstrings as they are: comments on constants, functions named like
their module, links to the pages of docs/."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":[a-z]+:`([^`]+)`")
PAGE = re.compile(r"(?<![`\w/])docs/([\w-]+)\.md")
COMMENT = re.compile(r"#: ?(.*)")
BESIDE = re.compile(r"[^\"'#]*  # (.*)")


def comment_on(attribute: Any) -> str:
    """The lines that begin with ``#:`` above an attribute, else the comment behind it."""
    lines = attribute.lines_collection[attribute.filepath]
    found: list[str] = []
    for line in reversed(lines[: attribute.lineno - 1]):
        if not (match := COMMENT.fullmatch(line.strip())):
            break
        found.insert(0, match[1])
    beside = BESIDE.fullmatch(lines[attribute.endlineno - 1])
    return " ".join(found) or (beside[1] if beside and "fmt:" not in beside[1] else "")


class Docstrings(griffe.Extension):
    """Changes objects once their package is loaded."""

    def on_attribute(self, *, attr: Any, **_: Any) -> None:
        """Give an attribute the comment on it as its docstring."""
        if not attr.docstring and attr.lineno and (text := comment_on(attr)):
            attr.docstring = griffe.Docstring(text[0].upper() + text[1:], parent=attr)

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Make plain Markdown of a docstring."""
        if not obj.is_alias and obj.docstring:
            text = ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = PAGE.sub(r"[\1](../\1.md)", text)

    def on_class(self, *, cls: Any, **_: Any) -> None:
        """Give methods that are declared anew, with other types, the docstrings of the base classes."""
        bare = [m for m in cls.members.values() if not m.is_alias and m.is_function and not m.docstring]
        bases = [base.members for base in cls.mro()] if any(not m.name.startswith("_") for m in bare) else []
        for method in bare:
            found = (members[method.name].docstring for members in bases if method.name in members)
            method.docstring = next(filter(None, found), None)

    def on_module(self, *, mod: Any, **_: Any) -> None:
        """Where a module imports a function from a submodule of the same name, its member is the function."""
        named_alike = {
            name for name, path in mod.imports.items() if name in mod.modules and path != mod.modules[name].path
        }
        for name, path in mod.imports.items():
            first, _, rest = path.removeprefix(f"{mod.path}.").partition(".")
            if first in named_alike and rest:
                mod.members[name] = griffe.Alias(name, mod.modules[first][rest], parent=mod)
            elif name in named_alike:
                mod.members[name] = griffe.Alias(name, path, parent=mod)
