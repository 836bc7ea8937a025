"""Which block of a completion is the program."""

from __future__ import annotations

import pytest

from maskgrad.tasks.code_blocks import defined_names, fenced_blocks, find_program

ADD = "def add(a, b):\n    return a + b\n"
FENCED = f"```python\n{ADD}```"


@pytest.mark.parametrize(
    "text",
    [
        FENCED,
        f"Here:\n{FENCED}\nDone.",
        f"<answer>\n{FENCED}\n</answer>",
        f"<answer>{FENCED}</answer>",
        FENCED.replace("```python", "```"),
        FENCED.replace("```python", "```py"),
        FENCED.replace("```python", "``` Python 3"),
        FENCED.replace("```", "~~~"),
        FENCED.replace("```", "````"),
        FENCED.replace("\n", "\r\n"),
        "The code: " + FENCED,
        "1. Do this:\n\n   " + FENCED.replace("\n", "\n   "),
        f"```python\ndef add(a, b): ...\n```\nBetter:\n{FENCED}",
        f"{FENCED}\nUse it so:\n```python\nprint(add(1, 2))\n```",
        f"{FENCED}\n```text\n3\n```",
        f"{FENCED}\nAnd then\n```python\ndef add(a, b):",
        f"```python\nimport os\nclass A: pass\n{ADD}```",
        "```python\n" + ADD.rstrip() + "```",
        "```python\n" + ADD.rstrip() + " ``` \nDone.",
        "```python\nif True:\n    def add(a, b): return a + b\n```",
        "```python\ntry:\n    from operator import add\nexcept ImportError:\n    pass\n```",
        "```python\ntry:\n    import nothing\nexcept ImportError:\n    add = lambda a, b: a + b\n```",
    ],
)
def test_found(text: str) -> None:
    found = find_program(text, ["add"])
    assert found.status == "ok", found
    space: dict[str, object] = {}
    exec(found.text, space)
    assert space["add"](1, 2) == 3  # type: ignore[operator]


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("", "no_answer"),
        (ADD, "no_answer"),
        ("```python\n\n```", "no_answer"),
        ("```python\ndef plus(a, b):\n    return a + b\n```", "no_answer"),
        ("```python\nclass A:\n    def add(a, b): return a + b\n```", "no_answer"),
        ("`def add(a, b): return a + b`", "no_answer"),
        ("```python\n" + ADD, "truncated"),
        ("```python\nx = 1\n```\nso\n```python\n" + ADD, "truncated"),
        ("```python\n" + ADD + "~~~", "truncated"),
        ("````python\n" + ADD + "```", "truncated"),
        ("x" * 200_001 + FENCED, "no_answer"),
        ("```python\ndef f():\n    def add(a, b): return a + b\n```", "no_answer"),
        ("```python\nif True:\n    class A:\n        def add(a, b): return a + b\n```", "no_answer"),
    ],
)
def test_not_found(text: str, status: str) -> None:
    assert find_program(text, ["add"]).status == status


def test_the_last_defining_block_counts_and_every_name_is_needed() -> None:
    two = f"```python\ndef add(a, b):\n    return 0\n```\n{FENCED}"
    assert find_program(two, ["add"]).text == ADD
    assert find_program(FENCED, ["add", "sub"]).status == "no_answer"


def test_a_block_that_does_not_parse_is_a_wrong_program_unless_another_one_does() -> None:
    broken = "```python\ndef add(a, b)\n    return a + b\n```"
    assert find_program(broken, ["add"]).status == "ok"
    assert defined_names(find_program(broken, ["add"]).text) is None
    assert find_program(f"{FENCED}\n{broken}", ["add"]).text == ADD


def test_names() -> None:
    code = (
        "import a.b, c as d\nfrom e import f as g, h\nx, (y, *z) = 1, (2, 3)\nw: int = 4\nasync def v(): 0\nclass U: 0"
    )
    assert defined_names(code) == set("adghxyzwvU")
    assert defined_names("def f(:") is None and defined_names("x = '\x00'") is None
    assert defined_names("(" * 5000) is None


def test_span_and_hostile_text_in_linear_time() -> None:
    found = find_program(f"ab\n{FENCED}", ["add"])
    assert f"ab\n{FENCED}"[slice(*found.span)] == ADD
    assert fenced_blocks("```a" * 40_000) == []
    assert len(fenced_blocks("```\n" * 40_000)) == 20_000
