"""Finding the program inside a completion: the fenced block that defines the wanted functions."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence

from maskgrad.tasks.answers import Extracted

MAX_TEXT = 200_000

_OPENING = re.compile(r"(`{3,}|~{3,})[ \t]*([^\n`~]*)\r?\n")


def fenced_blocks(text: str) -> list[tuple[int, int]]:
    """Start and end of the content of every complete fenced block, in order; its language tag does not matter.

    The closing fence stands at the start of a line (indented or not), has at least as many marks as the opening one
    and no language tag; where there is none, one that ends a line closes the block. A block that is never closed was
    cut off and is none; nothing after its opening is looked at.
    """
    found: list[tuple[int, int]] = []
    place = 0
    while (opening := _OPENING.search(text, place)) is not None:
        marks = opening.group(1)
        closing = re.compile(rf"^[ \t]*{marks[0]}{{{len(marks)},}}[ \t]*(?=\r?$|<|\Z)", re.MULTILINE)
        glued = re.compile(rf"{marks[0]}{{{len(marks)},}}[ \t]*(?=\r?$|<|\Z)", re.MULTILINE)
        end = closing.search(text, opening.end()) or glued.search(text, opening.end())
        if end is None:
            break
        found.append((opening.end(), end.start()))
        place = end.end()
    return found


def defined_names(program: str) -> set[str] | None:
    """Names bound at the top level of a program by definitions, imports and assignments, also inside branches and
    `try`; None if it does not parse.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on account of odd escapes in somebody else's text
            tree = ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    names: set[str] = set()
    for node in _statements(tree.body):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            names.update(_assigned(node))
    return names


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of the module's own scope, those inside branches, loops, `with` and `try` included."""
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.For, ast.While, ast.With, ast.Try)):
            for part in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from _statements(handler.body)


def _assigned(node: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}


def find_program(text: str, wanted: Sequence[str]) -> Extracted:
    """The last complete fenced block that defines every wanted name; sketches before it are passed over.

    Without one: the last block that names them after `def` but does not parse (the program is then wrong, not
    absent), else no answer; "truncated" when a block was opened and never closed.
    """
    if len(text) > MAX_TEXT:
        return Extracted("", "none", (0, 0), "no_answer")
    blocks = fenced_blocks(text)
    broken: tuple[int, int] | None = None
    for start, end in reversed(blocks):
        program = block_text(text[start:end])
        names = defined_names(program)
        if names is not None and names.issuperset(wanted):
            return Extracted(program, "fence", (start, end), "ok")
        if names is None and broken is None and all(re.search(rf"\bdef\s+{name}\b", program) for name in wanted):
            broken = start, end
    if broken is not None:
        return Extracted(block_text(text[slice(*broken)]), "fence", broken, "ok")
    rest = text[blocks[-1][1] :].partition("\n")[2] if blocks else text
    cut = _OPENING.search(rest) is not None
    return Extracted("", "fence" if cut else "none", (0, 0), "truncated" if cut else "no_answer")


def block_text(content: str) -> str:
    """A block's content with line ends unified and common indentation (of a block inside a list) removed."""
    return textwrap.dedent(content.replace("\r\n", "\n"))
