"""A grading worker: a process of its own, without torch, that builds a task and judges completions one after another.

Requests come on standard input as pickles from the process that started it; answers leave as JSON, one frame per
completion and as soon as it is judged, so that the other side always knows which completion is being judged.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import resource
import struct
import sys
import threading
import time
import traceback
from typing import Any

from maskgrad.errors import UserError
from maskgrad.tasks.base import Example, Grade, Task
from maskgrad.tasks.registry import build_task
from maskgrad.tasks.sandbox_wire import send

PARENT_CHECK_SECONDS = 1.0


def main() -> None:
    requests, answers = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):  # what a grader or a program prints must not be taken for an answer
        os.dup2(null, fd)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    with os.fdopen(requests, "rb") as source:
        first = _read(source)
        _set_memory(first["memory"])
        try:
            task = build_task(first["settings"])
            task.warm_up()
        except UserError as error:
            send(answers, {"refused": str(error)})
            return
        except Exception:  # process boundary: the reason travels to whoever reports it
            send(answers, {"failed": traceback.format_exc(limit=-5)})
            return
        send(answers, {"ready": True})
        while True:
            _serve(task, _read(source), answers)


def _read(source: Any) -> Any:
    """The next request; the process ends when there is none."""
    header = source.read(4)
    if len(header) < 4:
        os._exit(0)
    return pickle.loads(source.read(struct.unpack(">I", header)[0]))


def _serve(task: Task, request: Any, answers: int) -> None:
    if request[0] == "grade":
        for example, text in request[1]:
            send(answers, _graded(task, example, text))
        return
    _, method, arguments = request
    try:
        value = getattr(task, method)(*arguments)
    except UserError as error:
        send(answers, {"refused": str(error)})
    except Exception:
        send(answers, {"failed": traceback.format_exc(limit=-5)})
    else:
        send(answers, {"value": dataclasses.asdict(value) if isinstance(value, Example) else value})


def _graded(task: Task, example: Example, text: str) -> dict[str, Any]:
    """A grade as plain data. An exception of the grader is an outcome; running out of memory or stack is the text's."""
    try:
        grade = task.grade(example, text)
    except (MemoryError, RecursionError) as error:
        grade = Grade(reward=0.0, correct=False, status="crash", detail=type(error).__name__)
    except Exception as error:
        grade = Grade(reward=None, correct=False, status="crash", detail=f"{type(error).__name__}: {error}"[:200])
        return {"grade": dataclasses.asdict(grade), "traceback": traceback.format_exc(limit=-5)}
    return {"grade": {**dataclasses.asdict(grade), "parts": dict(grade.parts)}}


def _set_memory(limit: int) -> None:
    """Bound the address space, so that a degenerate answer runs out of memory here and nowhere else."""
    if limit:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    sys.setrecursionlimit(1000)
    main()
