"""Prompt texts. "compact" is a bare notation for small models; "d1" follows the published instruction protocol.

Sentences are worded here; the facts they carry (format block, rules, tags) are those of the published prompts.
"""

from __future__ import annotations

from collections.abc import Sequence

PROTOCOLS = ("compact", "d1")

FORMAT_BLOCK = """Write your response in the following format:
<reasoning>
...
</reasoning>
<answer>
...
</answer>"""

SUDOKU_RULES = """Solve a 4x4 Sudoku. The grid is given as a string of 16 characters, read from left to right and from \
top to bottom, in which 0 stands for an empty cell. In the solution every row, every column and every 2x2 box \
contains each of the digits 1, 2, 3 and 4 once. Keep the given digits, fill in the empty cells, and give the \
complete grid as a string of 16 characters.

Use exactly this output format:
<reasoning>
how you found the digits
</reasoning>
<answer>
the 16 digits of the solved grid
</answer>"""

COUNTDOWN_RULES = """Use only the numbers {numbers} to build an arithmetic expression whose value is exactly {target}. \
Every listed number must be used exactly once. The only operations allowed are {operators}. Put only the final \
expression inside the <answer> tags, without an equals sign and without the target.
Example: for the numbers 16, 4, 2 and the target {example_target}, <answer>{example}</answer> is right."""


def sudoku_prompt(protocol: str, puzzle: str) -> str:
    """Prompt for a puzzle of 16 digits, 0 for an empty cell."""
    if protocol == "compact":
        return puzzle
    return f"{SUDOKU_RULES}\n\nNow solve this puzzle: {puzzle}"


def countdown_prompt(
    protocol: str, numbers: Sequence[int], target: int, operators: str, worked: tuple[str, int]
) -> str:
    """Prompt for a Countdown problem; `worked` is an expression over 16, 4, 2 and its value."""
    if protocol == "compact":
        return f"{','.join(map(str, numbers))}={target}"
    rules = COUNTDOWN_RULES.format(
        numbers=", ".join(map(str, numbers)),
        target=target,
        operators=" ".join(operators),
        example=worked[0],
        example_target=worked[1],
    )
    return f"{FORMAT_BLOCK}\n\n{rules}"


def completion_text(protocol: str, answer: str, reasoning: str) -> str:
    """A completion in the form the protocol asks for: the bare answer, or reasoning and answer in their tags."""
    if protocol == "compact":
        return answer
    return f"<reasoning>\n{reasoning}\n</reasoning>\n<answer>\n{answer}\n</answer>"
