"""Which answers may reach a scorer that evaluates them as code: those that are plain data or arithmetic.

Some generators of reasoning-gym pass the answer to `eval`, directly or through a symbolic parser. An answer reaches
them only if every node of its syntax tree is on a list; what is not Python at all must consist of harmless characters.
"""

from __future__ import annotations

import ast
import re
import warnings

MAX_TEXT = 2000
MAX_DIGITS = 12  # of an exponent or operand of a power, so that the value stays small

EVALUATED = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
PARSED = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"}
)

_DATA = (ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Load, ast.UnaryOp, ast.USub, ast.UAdd, ast.Name)
_ARITHMETIC = (ast.Expression, ast.Constant, ast.Load, ast.UnaryOp, ast.USub, ast.UAdd, ast.BinOp, ast.Add, ast.Sub,
               ast.Mult, ast.Div, ast.Pow, ast.Name, ast.Call)  # fmt: skip
_FUNCTIONS = frozenset(
    {"sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan", "sinh", "cosh", "tanh", "exp", "log", "ln",
     "sqrt", "Abs", "abs", "pi"}
)  # fmt: skip
_HARMLESS = re.compile(r"[\w\s+\-*/^(),.=|!?:;'<>×÷√]*", re.ASCII)
_ATTRIBUTE = re.compile(r"\.\s*[A-Za-z_]|__")


def refused(generator: str, answer: str) -> str:
    """Why an answer may not reach the scorer of a generator; empty if it may."""
    if generator in EVALUATED:
        return _judge(answer, arithmetic=False)
    if generator in PARSED:
        return _judge(answer, arithmetic=True)
    return ""


def _judge(answer: str, *, arithmetic: bool) -> str:
    if len(answer) > MAX_TEXT:
        return "longer than an answer of this kind can be"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(answer.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "" if _HARMLESS.fullmatch(answer) and not _calls(answer) else "neither an answer nor harmless text"
    allowed = _ARITHMETIC if arithmetic else _DATA
    for node in ast.walk(tree):
        if not isinstance(node, allowed) or not _plain(node, arithmetic=arithmetic):
            return f"holds a {type(node).__name__}, which an answer of this kind cannot"
    return ""


def _calls(text: str) -> bool:
    """Whether text that is no Python could still be read as an attribute, or a call of something unknown."""
    called = re.findall(r"([A-Za-z_]\w*)\s*\(", text)
    return bool(_ATTRIBUTE.search(text)) or any(len(name) > 1 and name not in _FUNCTIONS for name in called)


def _plain(node: ast.AST, *, arithmetic: bool) -> bool:
    if isinstance(node, ast.Constant):
        return not arithmetic or isinstance(node.value, (int, float))
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and not node.keywords
    if isinstance(node, ast.Name):
        if not arithmetic:  # a bare word in capitals is an answer; others could name variables of the scorer
            return node.id.isupper()
        return len(node.id) <= 2 or node.id in _FUNCTIONS
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        nested = any(isinstance(n, ast.Pow) for side in (node.left, node.right) for n in ast.walk(side))
        digits = sum(len(str(n.value)) for n in ast.walk(node) if isinstance(n, ast.Constant))
        return digits <= MAX_DIGITS and not (nested and not arithmetic)
    return True
