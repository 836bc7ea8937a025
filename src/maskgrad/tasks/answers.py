"""Finding the answer inside a completion, for all tasks. Text is scanned once, braces and tags are never repaired."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

ExtractStatus = Literal["ok", "no_answer", "truncated"]

EXTRACTOR = "answers 2"

_BOX_TOKENS = re.compile(r"\\(?:boxed|fbox)(?:\s{0,4}\{|[ \t]{1,4}(?=[^\s{]))|\\.|[{}]", re.DOTALL)
_BARE_BOX_END = re.compile(r"\n|\$|\\\)|\\\]|<|$")
_BOX_OF_NOTHING = re.compile(r"\\(?:boxed|fbox)\s{0,4}\{\s*\}")
_FORMAT_TAGS = re.compile(r"</?(?:reasoning|answer)>")
_STOP_MARKS = re.compile(r"<\|(?:eot_id|endoftext|end_of_text|im_end|eos)\|>")


@dataclass(frozen=True)
class Extracted:
    """An answer and where it was found.

    `source` is "text", "tag", "box" or "hashes", and "none" when nothing was opened. `span` gives start and end in the
    scanned text, (0, 0) without an answer. `status` is "truncated" when an answer was opened, never closed, and no
    complete one came before it.
    """

    text: str
    source: str
    span: tuple[int, int]
    status: ExtractStatus


def last_tag(text: str, tag: str) -> Extracted:
    """Content of the last complete `<tag>...</tag>` pair, surrounding whitespace removed.

    Tags are matched exactly, in lower case as given. A pair that is opened again before it closes starts at
    the later opening. An unclosed tag after a complete pair is ignored; empty content is no answer.
    """
    opened: int | None = None
    found: tuple[int, int] | None = None
    for match in re.finditer(f"<(/?){re.escape(tag)}>", text):
        if not match.group(1):
            opened = match.end()
        elif opened is not None:
            found, opened = (opened, match.start()), None
    return _extracted(text, "tag", found, truncated=opened is not None)


def last_box(text: str) -> Extracted:
    r"""Content of the last complete `\boxed{...}` or `\fbox{...}`, with braces balanced.

    Of nested boxes the outermost counts, unless it holds only the inner one; a box inside a box that never closes
    does not. Escaped braces are text. A macro with a space and no brace after it boxes the rest of its line, up to a
    closing math mark or a tag.
    """
    found, unclosed, _ = _scan_boxes(text)
    return _extracted(text, "box", found, truncated=unclosed)


def _scan_boxes(text: str) -> tuple[tuple[int, int] | None, bool, int | None]:
    """Span of the last complete box, whether a box is left open, and where the content of the open one starts if all
    else in it is balanced.
    """
    stack: list[int | None] = []  # start of the content for a box, None for a plain brace
    open_boxes = 0
    found: tuple[int, int] | None = None
    for match in _BOX_TOKENS.finditer(text):
        token = match.group()
        if token == "{":
            stack.append(None)
        elif token == "}":
            start = stack.pop() if stack else None
            if start is not None:
                open_boxes -= 1
                if open_boxes == 0:
                    found = (start, match.start())
        elif token.endswith("{") and token != "\\{":
            outer = stack[-1] if stack else None
            if outer is not None and not text[outer : match.start()].strip():
                stack[-1] = None
                open_boxes -= 1
            stack.append(match.end())
            open_boxes += 1
        elif token.endswith((" ", "\t")) and len(token) > 2 and not open_boxes:
            end = _BARE_BOX_END.search(text, match.end())
            found = (match.end(), end.start() if end else len(text))
    return found, open_boxes > 0, stack[-1] if stack and open_boxes == 1 else None


def tagged_answer(text: str) -> Extracted:
    """Answer of a protocol with tags: the last complete answer tag, and inside it the last complete box if any.

    A box with nothing in it does not hide what stands beside it. A box that lacks only its own last brace when the
    tag closes was finished by its author, not cut by a length limit, and counts; any other open box is no answer.
    """
    tag = last_tag(text, "answer")
    if tag.status != "ok":
        return tag
    box = last_box(tag.text)
    if box.status == "truncated":
        box = _unclosed_box(tag.text) or box
    if box.status == "no_answer" and (box.source == "none" or _BOX_OF_NOTHING.sub("", tag.text).strip()):
        return tag
    shift = tag.span[0]
    return Extracted(box.text, box.source, (box.span[0] + shift, box.span[1] + shift), box.status)


def _unclosed_box(text: str) -> Extracted | None:
    start = _scan_boxes(text)[2]
    return None if start is None else _extracted(text, "box", (start, len(text)), truncated=False)


def final_answer(text: str) -> Extracted:
    """Answer of a completion whatever its protocol: one order of places for training, evaluation and re-grading.

    1. The last complete answer tag with something in it, and inside it the last complete box if there is one.
    2. Without such a tag the last complete box (the opening tag may stand in the prompt).
    3. A tag or box that was opened and never closed is a cut answer, and so no answer; see `_lone_box` for the one
       exception.
    4. The rest of the line after the last `####`.
    5. The whole text, which the task's reader has to make sense of; not where a tag of the format shows that an
       answer tag was asked for and is missing.

    Text from the first end-of-text mark on is ignored. Spans refer to the text as given.
    """
    mark = _STOP_MARKS.search(text)
    text = text[: mark.start()] if mark else text
    tag = last_tag(text, "answer")
    if tag.status == "ok":
        return tagged_answer(text)
    box = last_box(text)
    if box.status == "ok":
        return box
    lone = _lone_box(text)
    if lone is not None:
        return lone
    for opened in (box, tag):
        if opened.source != "none":
            return opened
    at = text.rfind("####")
    if at >= 0:
        start = at + 4
        end = text.find("\n", start)
        return _extracted(text, "hashes", (start, len(text) if end < 0 else end), truncated=False)
    if _FORMAT_TAGS.search(text):
        return _extracted(text, "none", None, truncated=False)
    return whole_answer(text)


def _lone_box(text: str) -> Extracted | None:
    r"""Content of a completion that is one box and nothing else, lacks the last brace, and ends on a complete argument.

    `\boxed{\frac{1}{2}` is such a text: it was not cut inside the answer, since its last sign closes an argument.
    """
    bare = text.rstrip().rstrip("$.").rstrip()
    start = _scan_boxes(bare)[2]
    if start is None or not re.fullmatch(r"\s*\$?\\(?:boxed|fbox)\s{0,4}\{", bare[:start]):
        return None
    if not bare.endswith("}") or bare.endswith("\\}") or "boxed" in bare[start:]:
        return None
    return _extracted(text, "box", (start, len(bare)), truncated=False)


def whole_answer(text: str) -> Extracted:
    """Answer of a protocol without tags: the whole completion, surrounding whitespace removed."""
    return _extracted(text, "text", (0, len(text)), truncated=False)


def _extracted(text: str, source: str, found: tuple[int, int] | None, *, truncated: bool) -> Extracted:
    """Trim the span; without one the source is "none"."""
    if found is None:
        return Extracted("", source if truncated else "none", (0, 0), "truncated" if truncated else "no_answer")
    content = text[found[0] : found[1]]
    answer = content.strip()
    start = found[0] + len(content) - len(content.lstrip())
    return Extracted(answer, source, (start, start + len(answer)), "ok" if answer else "no_answer")
