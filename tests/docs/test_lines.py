"""Files and functions are short; tests/support/lines.py counts them."""

import ast
import json

import lines
from lines import Count, Length


def test_no_file_and_no_function_is_too_long(capsys):
    assert lines.main([]) == 0, capsys.readouterr().out
    shown = capsys.readouterr().out
    assert lines.main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"core", "packages", "longest", "beyond"} == set(found)
    assert found["beyond"] == {"files": [], "functions": []}
    assert f"the core {found['core']['code']:25}" in shown
    assert found["longest"]["files"][0]["where"] in shown


def test_the_core_is_what_the_packages_have_that_are_not_beside_it():
    found = lines.report()
    assert found["packages"].keys() >= lines.BESIDE
    inside = [lines_of for name, lines_of in found["packages"].items() if name not in lines.BESIDE]
    assert found["core"] == Count(*map(sum, zip(*inside, strict=True)))
    assert found["core"].all > 10_000


def test_kinds_of_lines(tmp_path):
    python, c = tmp_path / "a.py", tmp_path / "a.c"
    python.write_text(
        '"""One\n\ntwo."""\n\nx = """three\n\n"""  # four\n# five """\n\n\ndef f():\n    """Six."""\n    return 7\n'
    )
    assert lines.count(python) == Count(code=5, comments=5, blank=3)
    c.write_text("/* One\n\n * two. */\n#include <x>\n\n// three\nint f; /* four */ int g; /*\n five */\n")
    assert lines.count(c) == Count(code=2, comments=5, blank=1)


def test_functions_of_python_are_those_of_its_parser():
    counted = 0
    for file in lines.sources():
        if file.suffix == ".py" and file.relative_to(lines.ROOT).parts[0] == "collectives":
            where = file.relative_to(lines.ROOT)
            defined = (n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.FunctionDef))
            theirs = {Length(n.end_lineno - n.lineno + 1, f"{where}:{n.lineno} {n.name}") for n in defined}
            assert set(lines.functions(file)) == theirs, file
            counted += len(theirs)
    assert counted > 1000


def test_functions_of_cython_and_c(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "ROOT", tmp_path)
    cython, c = tmp_path / "a.pxi", tmp_path / "a.c"
    cython.write_text(
        "cdef class A:\n    cdef int x\n\n    cdef inline size_t *f(self, int a,\n           int b) except NULL:\n"
        "        return NULL\n\n\ncdef int y = g(1)\n\n\ncpdef g(n):\n    # one\n\n    return n\n# not of it\n"
    )
    assert list(lines.functions(cython)) == [Length(3, "a.pxi:4 f"), Length(4, "a.pxi:12 g")]
    c.write_text(
        "struct s {\n    int x;\n};\nint f(int);\n#define M(x) \\\n    do { \\\n    } while (x)\n\n"
        "static int f(int x,\n             int y) {\n    if (x) {\n    }\n    return y;\n}\nint t[] = {\n    1,\n};\n"
    )
    assert list(lines.functions(c)) == [Length(3, "a.c:5 M"), Length(6, "a.c:9 f")]
