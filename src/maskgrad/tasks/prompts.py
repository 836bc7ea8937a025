r"""Prompt texts by protocol and task.

"compact" is a bare notation for small models. "d1" (arXiv 2504.12216, also wd1 and EGSPO), "spg" (2510.09541), "espo"
(2512.03759) and "tracerl" (2509.06949) ask for what the published prompts ask for: the same format block, tags,
rules, order of parts and place of `\boxed{}`. The sentences are worded here, so scores need not match a published
number to the last point; the hash of the wording is part of every result.
"""

from __future__ import annotations

from collections.abc import Sequence

PROTOCOLS = ("compact", "d1", "spg", "espo", "tracerl")
TAGGED = ("d1", "spg")  # protocols whose GSM8K and MATH answers stand in tags

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


MATH_EXPERT = (
    r"""You are an expert in mathematics. Solve the problem step by step, and give the final answer inside \boxed{}."""
)

BOXED_REQUEST = r"Reason step by step, and put the final answer within \boxed{}."

_SHOTS = (
    ("3014002020004130", "3214142323414132"),
    ("0000100420013142", "4213132424313142"),
    ("2001403002001420", "2341413232141423"),
)
_DRAWN = ("0401002010030310", "2431312412434312")


def word_problem_prompt(protocol: str, problem: str, *, mathematics: bool = False) -> str:
    """Prompt for a GSM8K question, or a MATH problem with `mathematics`."""
    if protocol == "compact":
        return problem
    if protocol == "espo":
        return f"{problem}\n{BOXED_REQUEST}"
    if protocol == "tracerl":
        return f"{BOXED_REQUEST}\n{problem}"
    expert = f"{MATH_EXPERT}\n\n" if mathematics else ""
    return f"{FORMAT_BLOCK}\n\n{expert}{problem}"


def word_problem_answer(protocol: str, answer: str, reasoning: str) -> str:
    """A completion in the form the protocol asks for, with the answer in a box except in "compact"."""
    if protocol == "compact":
        return answer
    if protocol in TAGGED:
        return completion_text(protocol, f"\\boxed{{{answer}}}", reasoning)
    return f"{reasoning}\n\\boxed{{{answer}}}"


def sudoku_prompt(protocol: str, puzzle: str) -> str:
    """Prompt for a puzzle of 16 digits, 0 for an empty cell. "spg" shows three solved puzzles first, "espo" draws
    one.
    """
    if protocol == "compact":
        return puzzle
    if protocol == "spg":
        shots = "\n\n".join(_shot(given, solved) for given, solved in _SHOTS)
        return f"{SUDOKU_RULES}\n\n{shots}\n\nQuestion:\n{puzzle}\nAnswer:"
    example = ""
    if protocol == "espo":
        given, solved = _DRAWN
        example = (
            f"\n\nExample: the puzzle {given} is the grid\n{_drawing(given)}\n"
            f"and its solution is {solved}:\n{_drawing(solved)}"
        )
    return f"{SUDOKU_RULES}{example}\n\nNow solve this puzzle: {puzzle}"


def _shot(given: str, solved: str) -> str:
    reasoning = "Each empty cell takes the digit that its row, column and box still lack."
    return f"Question:\n{given}\nAnswer:\n{completion_text('spg', solved, reasoning)}"


def _drawing(grid: str) -> str:
    return "\n".join(" ".join(grid[start : start + 4]) for start in range(0, 16, 4))


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
