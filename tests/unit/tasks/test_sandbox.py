"""The sandbox itself: what a right program may count on, and what a wrong set-up says."""

from __future__ import annotations

import os
import shutil
import threading

import pytest

from maskgrad.errors import UserError
from maskgrad.tasks import sandbox, sandbox_run
from maskgrad.tasks.sandbox import Limits, check_sandbox, command
from maskgrad.tasks.sandbox_run import ProgramTests, Verdict, run_program
from maskgrad.tasks.sandbox_wire import decode, encode

KIND = "bwrap" if shutil.which("bwrap") else "rlimit"
LIMITS = Limits(test_seconds=0.5, total_seconds=2.0, patience=4.0)


def run(program: str, *tests: str, names: tuple[str, ...] = ("f",), **more: str) -> Verdict:
    return run_program(program, ProgramTests(names=names, tests=tests, **more), KIND, LIMITS)


def test_every_plain_type_crosses_and_keeps_its_type() -> None:
    program = "def f(x): return x, type(x).__name__"
    values = [
        0,
        -(10**5000),
        True,
        None,
        1.5,
        float("inf"),
        2j,
        "é\ud800",
        b"\x00\xff",
        [1],
        (1,),
        {1},
        {"a": (1, [2])},
    ]
    values[1] = 5
    tests = [f"x = {v!r}\nassert f(x) == (x, type(x).__name__)".replace("inf", "float('inf')") for v in values]
    tests[1] = "x = -(10**5000)\nassert f(x) == (x, 'int')"
    assert run(program, *tests).results == ("ok",) * len(tests)


def test_values_of_richer_types_arrive_as_plain_data() -> None:
    program = (
        "from collections import Counter, OrderedDict, namedtuple\nimport enum\nP = namedtuple('P', 'x y')\n"
        "class E(enum.IntEnum): A = 3\ndef f(): return [Counter('aab'), OrderedDict(a=1), P(1, 2), E.A, range(3)]"
    )
    assert run(program, "assert f() == [{'a': 2, 'b': 1}, {'a': 1}, (1, 2), 3, range(3)]").outcome == "ok"


def test_other_objects_can_be_used_but_not_compared() -> None:
    program = (
        "class Pair:\n    def __init__(self, a, b): self.a, self.b = a, b\n    def total(s): return s.a + s.b\n"
        "    def __eq__(self, o): return True\ndef f(pairs): return sum(p.total() for p in pairs)\n"
        "def g(): return (n * n for n in range(4))"
    )
    verdict = run(
        program,
        "assert f([Pair(1, 2), Pair(3, 4)]) == 10",
        "assert Pair(5, 6).total() == 11 and Pair(5, 6).a == 5",
        "assert list(g()) == [0, 1, 4, 9]",
        "assert Pair(1, 2) == 5",
        "assert Pair(1, 2) != 5",
        "assert Pair(1, 2)",
        "try:\n    assert Pair(1, 2) == 5\nexcept:\n    pass",
    )
    assert verdict.results == ("ok", "ok", "ok", "wrong", "wrong", "wrong", "wrong")


def test_exceptions_arrive_under_their_name() -> None:
    program = "class Own(KeyError): pass\ndef f(x):\n    if x: raise ValueError('no')\n    raise Own('k')"
    caught = "try:\n    f({})\nexcept {} as error:\n    assert 'no' in str(error) or True\nelse:\n    assert False"
    verdict = run(program, caught.format(1, "ValueError"), caught.format(0, "KeyError"), caught.format(0, "ValueError"))
    assert verdict.results == ("ok", "ok", "wrong")


def test_one_slow_test_costs_only_itself_and_a_dead_program_all_that_follow() -> None:
    slow = "def f(n):\n    while n == 1: pass\n    return n"
    assert run(slow, "assert f(0) == 0", "assert f(1) == 1", "assert f(2) == 2").results == ("ok", "timeout", "ok")
    dead = "import os\ndef f(n):\n    if n == 1: os._exit(0)\n    return n"
    assert run(dead, "assert f(0) == 0", "assert f(1) == 1", "assert f(2) == 2").results == ("ok", "crash", "crash")
    hangs = (
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n"
        "def f(n):\n    while n == 1: pass\n    return n"
    )
    verdict = run(hangs, "assert f(0) == 0", "assert f(1) == 1", "assert f(2) == 2")
    assert verdict.results == ("ok", "timeout", "timeout") and verdict.outcome == "timeout"
    assert verdict.passed == pytest.approx(1 / 3)


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_one() -> None:
    program = (
        "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\ndef f(n):\n"
        "    end = time.monotonic() + 1.3\n    while n == 1 and time.monotonic() < end: pass\n    return n"
    )
    tests = ProgramTests(names=("f",), tests=("assert f(1) == 1", "assert f(2) == 1"))
    short = Limits(test_seconds=0.2, total_seconds=5.0, patience=2.0)
    assert run_program(program, tests, KIND, short).results == ("timeout", "timeout")


def test_a_program_cannot_replace_what_the_tests_rely_on() -> None:
    program = (
        "import math\nmath.isclose = lambda *a: True\ndef abs(x): return 0\ndef helper(x): return 0\ndef f(x): return 7"
    )
    verdict = run(
        program,
        "assert math.isclose(f(1), 2)",
        "assert abs(f(1) - 2) < 1",
        "assert helper(f(1)) == 0",
        setup="def helper(x):\n    return x",
    )
    assert verdict.results == ("wrong", "wrong", "wrong")
    assert run("def sum(a, b): return a - b", "assert sum(5, 2) == 3", names=("sum",)).outcome == "ok"


def test_a_private_folder_and_an_empty_environment() -> None:
    program = "import os, sys\ndef f(): return sorted(os.environ), sys.stdin.read(), os.getuid()"
    verdict = run(program, "names, text, uid = f()\nassert set(names) <= {'TMPDIR', 'PWD', 'PATH', 'LC_CTYPE'}\n"
                  f"assert text == '' and (uid != 0 or {os.getuid() != 0})")  # fmt: skip
    assert verdict.outcome == "ok", verdict
    if KIND == "bwrap":
        scratch = "def f():\n    with open('/tmp/a', 'w') as file: file.write('x')\n    return open('/tmp/a').read()"
        assert run(scratch, "assert f() == 'x'").outcome == "ok"
        look = "import os\ndef f(): return any(map(os.path.exists, ('/home', '/root', '/etc/passwd')))"
        assert run(look, "assert f() is False").outcome == "ok"


def test_a_program_that_prints_too_much_is_wrong_and_one_that_prints_is_not() -> None:
    tests = ProgramTests(names=("f",), tests=("assert f() == 1",))
    program = "def f():\n    print('x' * {}, flush=True)\n    return 1"
    few = Limits(test_seconds=0.5, total_seconds=2.0, output=1000)
    assert run_program(program.format(900), tests, KIND, few).outcome == "ok"
    verdict = run_program(program.format(9000), tests, KIND, few)
    assert (verdict.outcome, verdict.detail) == ("wrong", "printed more than 1000 bytes")


def test_helper_functions_recursion_and_main_guard() -> None:
    program = (
        "def g(n): return n\ndef f(n): return 1 if n == 0 else n * f(g(n) - 1)\n"
        "if __name__ == '__main__':\n    print(input())"
    )
    assert run(program, "assert f(5) == 120", "from solution import f as h\nassert h(3) == 6").outcome == "ok"


def test_from_any_thread() -> None:
    found: list[Verdict] = []
    thread = threading.Thread(target=lambda: found.append(run("def f(): return 1", "assert f() == 1")))
    thread.start()
    thread.join()
    assert found[0].outcome == "ok"


def test_an_interpreter_that_does_not_start_is_infra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "command", lambda kind, code, arguments, limits: ["false"])
    verdict = run("def f(): return 1", "assert f() == 1")
    assert verdict.outcome == "infra" and verdict.results == ()


def test_a_report_without_the_marker_counts_for_nothing() -> None:
    for report in (b"", b"[]", b'{"marker": "guess", "started": true, "results": [["ok", ""]]}', b"\xff", b"[" * 99999):
        assert sandbox_run._verdict(report, 0, "secret", 1, LIMITS).outcome == "infra"


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="use bwrap or rlimit"):
        check_sandbox("none")
    with pytest.raises(UserError, match="without tests"):
        run("def f(): pass")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UserError, match=r"bubblewrap .* is not installed.*--sandbox rlimit"):
        check_sandbox("bwrap")
    check_sandbox("rlimit")


def test_the_interpreter_is_isolated() -> None:
    words = command("rlimit", "pass", [], LIMITS)
    assert words[1:4] == ["-I", "-S", "-B"]


def test_malformed_answers_are_refused() -> None:
    for form in (5, "text", [1], {"int": "z"}, {"nothing": 1}, {"list": 3}, {"dict": [[1]]}, {"a": 1, "b": 2}):
        with pytest.raises((ValueError, TypeError, KeyError)):
            decode(form, lambda reference: None)
    assert encode(3, lambda value: {}) == {"int": "3"}
