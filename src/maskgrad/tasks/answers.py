"""Finding the answer inside a completion. Text is scanned once, braces and tags are never repaired."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

ExtractStatus = Literal["ok", "no_answer", "truncated"]

_BOX_TOKENS = re.compile(r"\\(?:boxed|fbox)\s{0,4}\{|\\.|[{}]", re.DOTALL)


@dataclass(frozen=True)
class Extracted:
    """An answer and where it was found.

    `source` is "text", "tag" or "box", and "none" when nothing was opened. `span` gives start and end in the
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

    Of nested boxes the outermost counts; a box inside a box that never closes does not. Escaped braces are text.
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
            stack.append(match.end())
            open_boxes += 1
    return _extracted(text, "box", found, truncated=open_boxes > 0)


def tagged_answer(text: str) -> Extracted:
    """Answer of a protocol with tags: the last complete answer tag, and inside it the last complete box if any.

    A tag holding only a box that never closes is no answer.
    """
    tag = last_tag(text, "answer")
    if tag.status != "ok":
        return tag
    box = last_box(tag.text)
    if box.status == "no_answer" and box.source == "none":
        return tag
    shift = tag.span[0]
    return Extracted(box.text, box.source, (box.span[0] + shift, box.span[1] + shift), box.status)


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
