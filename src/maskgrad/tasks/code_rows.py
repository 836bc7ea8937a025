"""Rows of the code data sets, in one form. A row that cannot be used is left out, with a count."""

from __future__ import annotations

import ast
import builtins
import gzip
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maskgrad.errors import UserError
from maskgrad.tasks.base import Example, Prompt
from maskgrad.tasks.code_blocks import defined_names
from maskgrad.tasks.sandbox_run import ProgramTests

ROW_FIELDS = {
    "code": (("prompt", "text"), ("test", "test_list"), ("code",)),
    "mbpp": (("prompt", "text"), ("test", "test_list"), ("code",)),
    "humaneval": (("prompt",), ("entry_point",), ("canonical_solution",), ("test",)),
    "kodcode": (("question",), ("test",), ("solution",)),
}


@dataclass(frozen=True, kw_only=True)
class CodeRow:
    """A problem. `question` is what the prompt states, `shown` the tests it may show, `before` code that precedes
    the program (imports and helper functions of the problem), `solution` a program known to be right."""

    id: str
    question: str
    shown: tuple[str, ...]
    tests: ProgramTests
    before: str
    solution: str


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Objects of a JSON-lines file, plain or gzipped. UserError names the line that is none."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except (OSError, EOFError) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start})") from error
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise UserError(f"{path}, line {number}: not a JSON object")
        rows.append(row)
    if not rows:
        raise UserError(f"{path} holds no problems")
    return rows


def code_rows(name: str, raw: Iterable[Mapping[str, Any]], where: str) -> tuple[tuple[CodeRow, ...], int]:
    """Usable rows of data set `name`, and how many were dropped because tests or solution do
    not parse, or the tests use names that nobody defines.

    UserError when a row lacks a column, or when nothing is left.
    """
    rows: dict[str, CodeRow] = {}
    dropped = 0
    for number, row in enumerate(raw, start=1):
        values = [_field(row, names, f"{where}, row {number}") for names in ROW_FIELDS[name]]
        identity = str(row.get("task_id", row.get("question_id", number)))
        if identity in rows:  # completions and verdicts are kept by it
            identity = f"{identity}, row {number}"
        made = _MAKERS[name](identity, row, *values)
        if made is None:
            dropped += 1
        else:
            rows[identity] = made
    if not rows:
        raise UserError(f"{where}: no usable problem (all {dropped} have tests or solutions that do not parse)")
    return tuple(rows.values()), dropped


def example_from_row(name: str, row: Mapping[str, Any], where: str, build: Callable[[CodeRow], Example]) -> Example:
    """An example from a saved row: with our columns, with those of the data set, or with `test_cases` alone.

    `test_cases` are assert statements; the functions wanted are those they call. UserError when there are no tests.
    """
    nested = row.get("prompt_fields")
    fields = {**row, **nested} if isinstance(nested, Mapping) else dict(row)
    identity = str(fields.get("id", fields.get("task_id", where)))
    if "names" in fields and "tests" in fields:
        columns = {key: fields.get(key, "") for key in ("names", "tests", "setup", "tests_setup", "before", "solution")}
        return Example(id=identity, prompt=_prompt(fields), columns=columns)
    if "test_cases" in fields:
        cases = [str(case) for case in fields["test_cases"]]
        names = called_names(cases, None)
        if not names:
            raise UserError(f"{where}: test_cases call no function: give assert statements")
        return Example(id=identity, prompt=_prompt(fields), columns={"names": list(names), "tests": cases})
    rows, _ = code_rows(name, [fields], where)
    return build(rows[0])


def _prompt(fields: Mapping[str, Any]) -> Prompt:
    prompt = fields.get("prompt")
    return prompt if isinstance(prompt, (str, list)) else ""


def _field(row: Mapping[str, Any], names: tuple[str, ...], where: str) -> Any:
    for name in names:
        value = row.get(name)
        if isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value)):
            return value
    raise UserError(f"{where}: needs the field {' or '.join(map(repr, names))}; found {', '.join(map(str, row))}")


def called_names(tests: Iterable[str], solution: str | None) -> tuple[str, ...]:
    """Functions the tests call, in order; only those the solution defines, or without one all that are not built in.

    Empty when something does not parse.
    """
    defined = None if solution is None else defined_names(solution)
    if defined is None and solution is not None:
        return ()
    found: dict[str, None] = {}
    for test in tests:
        try:
            tree = ast.parse(test)
        except (SyntaxError, ValueError, RecursionError):
            return ()
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                name = node.func.id
                if (name in defined) if defined is not None else not hasattr(builtins, name):
                    found[name] = None
    return tuple(found)


def used_names(tests: Iterable[str]) -> set[str]:
    """Names read by tests that parse; what they bind themselves (in comprehensions, say) is left out."""
    nodes = [node for test in tests for node in ast.walk(ast.parse(test)) if isinstance(node, ast.Name)]
    stored = {node.id for node in nodes if not isinstance(node.ctx, ast.Load)}
    return {node.id for node in nodes} - stored


def _mbpp(name: str, row: Mapping[str, Any], question: str, tests: Any, solution: str) -> CodeRow | None:
    listed = (tests,) if isinstance(tests, str) else tuple(tests)
    names = called_names(listed, solution)
    imports = row.get("test_imports") or row.get("test_setup_code") or ""
    setup = imports if isinstance(imports, str) else "\n".join(imports)
    known = (defined_names(solution) or set()) | (defined_names(setup) or set())
    if not names or not used_names(listed) <= known | set(dir(builtins)):
        return None
    return CodeRow(
        id=name,
        question=question.strip(),
        shown=listed,
        tests=ProgramTests(names=names, tests=listed, setup=setup),
        before="",
        solution=solution.replace("\r\n", "\n"),
    )


def _humaneval(name: str, row: Mapping[str, Any], prompt: str, entry: str, solution: str, test: str) -> CodeRow | None:
    before = prompt if defined_names(prompt) is not None else ""
    if entry not in (defined_names(prompt + solution) or ()) or "check" not in (defined_names(test) or ()):
        return None
    tests = ProgramTests(names=(entry,), tests=(f"check({entry})",), setup=before, tests_setup=test)
    return CodeRow(id=name, question=prompt.strip(), shown=(), tests=tests, before=before, solution=prompt + solution)


def _kodcode(name: str, row: Mapping[str, Any], question: str, test: str, solution: str) -> CodeRow | None:
    tests = pytest_functions(test, solution)
    if tests is None:
        return None
    return CodeRow(id=name, question=question.strip(), shown=(), tests=tests, before="", solution=solution)


def pytest_functions(text: str, solution: str | None = None) -> ProgramTests | None:
    """Tests written as functions `test_...` that import the program as module `solution`; None if there are none.

    Every function without parameters is one test. Parameters (fixtures, tables) are not supported.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    found = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("test")]
    names = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "solution"
        for alias in node.names
    }
    if not found or not names or any(node.args.args for node in found):
        return None
    if solution is not None and not names.issubset(defined_names(solution) or ()):
        return None
    calls = tuple(f"{node.name}()" for node in found)
    return ProgramTests(names=tuple(sorted(names)), tests=calls, tests_setup=text)


_MAKERS: dict[str, Any] = {"code": _mbpp, "mbpp": _mbpp, "humaneval": _humaneval, "kodcode": _kodcode}
