"""Sandbox for programs written by a model: how a process is started, and what it may do.

"bwrap" starts it in namespaces of its own (bubblewrap): no network, the system read-only, a private temporary folder,
no sight of other processes, gone with its parent. "rlimit" has the limits alone and is weaker: the program may read
what the user may read, and where the kernel lacks Landlock create empty files. Both set limits on CPU time, memory,
file size, open files and processes, have the kernel kill a program that tries to make a process, a thread or a socket
or to signal another process, give up root's rights, empty the environment and close standard input. Neither is a
security boundary against a determined attacker with a kernel exploit.
"""

from __future__ import annotations

import functools
import math
import os
import secrets
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from maskgrad.errors import UserError

SANDBOXES = ("bwrap", "rlimit")
SYSTEM_FOLDERS = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin", "/etc/alternatives", "/etc/ld.so.cache")
FIRST_FREE_UID = 2_000_000_000  # root's programs run as a user id drawn above this one, which nobody has


#: How a result names the sandbox.
NAMES = {"bwrap": "bwrap", "rlimit": "rlimit (weaker: limits without namespaces)"}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one program may use.

    test_seconds: CPU time of one test. total_seconds: CPU time of all its tests. patience: wall time allowed for each
    of the two, as a multiple. memory, files_size, output: bytes of address space, of one file (and of the temporary
    folder), and of what it prints. processes: including threads; one is the program itself. Under
    "rlimit" it may not write a byte to disk.
    """

    test_seconds: float = 4.0
    total_seconds: float = 12.0
    patience: float = 3.0
    memory: int = 2**29
    file_size: int = 2**24
    output: int = 2**18
    open_files: int = 64
    processes: int = 1

    @property
    def wall(self) -> float:
        """Seconds after which the program is killed, whatever it does."""
        return self.patience * self.total_seconds


def check_sandbox(kind: str) -> None:
    """Refuse an unknown sandbox, or one that this machine does not have."""
    if kind not in SANDBOXES:
        raise UserError(f"sandbox cannot be {kind!r}: use bwrap or rlimit")
    if sys.platform != "linux":
        raise UserError("programs written by a model can be run on Linux only: grade code tasks there")
    if kind == "bwrap" and shutil.which("bwrap") is None:
        raise UserError(
            "bubblewrap (command bwrap) is not installed: install it (on Debian apt-get install bubblewrap), or accept "
            "the weaker --sandbox rlimit"
        )


@functools.cache
def source(module: str) -> str:
    """Text of one of the modules that run inside the sandbox."""
    return (resources.files("maskgrad.tasks") / f"{module}.py").read_text("utf-8")


def boot_code(module: str, uid: int, limits: Limits, *, alone: bool) -> str:
    """Code of a fresh interpreter that gives up its rights and then runs `module`.

    uid: user id to become when started as root; 0 keeps the present one. alone: no byte on disk.
    """
    sizes = {
        "RLIMIT_CPU": math.ceil(limits.total_seconds),
        "RLIMIT_AS": limits.memory,
        "RLIMIT_FSIZE": 0 if alone else limits.file_size,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_NPROC": limits.processes,
        "RLIMIT_CORE": 0,
    }
    lines = ["import sys, types"]
    for name in ("sandbox_wire", "sandbox_entry"):
        lines.append(f"module = sys.modules['maskgrad.tasks.{name}'] = types.ModuleType({name!r})")
        lines.append(f"exec({source(name)!r}, module.__dict__)")
    lines.append(f"module.restrict({uid}, {sizes!r})")
    lines.append(f"exec({source(module)!r}, {{'__name__': '__main__'}})")
    return "\n".join(lines)


def command(kind: str, code: str, arguments: Sequence[str], limits: Limits) -> list[str]:
    """Command line that runs `code` in a fresh, isolated interpreter inside the sandbox."""
    python = [_interpreter(kind), "-I", "-S", "-B", "-X", "utf8", "-c", code, *arguments]
    return [*_namespaces(limits), *python] if kind == "bwrap" else python


def _interpreter(kind: str) -> str:
    """The real interpreter, without its virtual environment."""
    real = Path(sys.executable).resolve()
    prefix = Path(sys.base_prefix).resolve()
    if kind == "bwrap" and not _is_system(prefix):
        return f"/python/{real.relative_to(prefix)}"
    return str(real)


def _is_system(folder: Path) -> bool:
    return folder == Path("/usr") or Path("/usr") in folder.parents


def _namespaces(limits: Limits) -> list[str]:
    """bubblewrap's options. Root needs no user namespace, and keeps the right to become somebody else."""
    out = ["bwrap", "--die-with-parent", "--new-session", "--unshare-ipc", "--unshare-pid", "--unshare-net"]
    out += ["--unshare-uts", "--unshare-cgroup-try"]
    if os.getuid() == 0:
        out += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        out += ["--unshare-user"]
    for folder in SYSTEM_FOLDERS:
        if os.path.islink(folder):
            out += ["--symlink", os.readlink(folder), folder]
        elif os.path.exists(folder):
            out += ["--ro-bind", folder, folder]
    prefix = Path(sys.base_prefix).resolve()
    if not _is_system(prefix):
        out += ["--ro-bind", str(prefix), "/python"]
    out += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    out += ["--perms", "1777", "--size", str(limits.file_size), "--tmpfs", "/tmp", "--remount-ro", "/"]
    return [*out, "--chdir", "/tmp", "--clearenv", "--setenv", "TMPDIR", "/tmp"]


def worker_command(kind: str) -> list[str]:
    """Command in front of the interpreter that starts a grading worker inside the sandbox; empty for "rlimit".

    The worker sees its own libraries, read-only, and nothing else of the user's.
    """
    if kind != "bwrap":
        return []
    base = _namespaces(Limits())
    base = base[: base.index("--clearenv")]
    end = len(base) - base[::-1].index("--remount-ro") - 1  # after the temporary folder, which may hold some of them
    libraries = [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]
    folders = [sys.prefix, sys.base_prefix, *libraries, str(Path(__file__).parents[1])]
    binds = [word for folder in dict.fromkeys(folders) for word in ("--ro-bind", folder, folder)]
    return [*base[:end], *binds, *base[end:]]


def draw_uid() -> int:
    """A user id for one program when the caller is root, so that its processes are counted and found apart; else 0."""
    return FIRST_FREE_UID + secrets.randbelow(10**8) if os.getuid() == 0 else 0


def readable_by_all(path: Path) -> bool:
    """Whether a user without rights can reach a folder."""
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents))


def start(
    kind: str, module: str, fds: tuple[int, int], limits: Limits, *, judge: bool, folder: str
) -> subprocess.Popen[bytes]:
    """Start one side of the sandbox.

    fds: the request and the answer end of the line between the two sides. The judge gets its work on standard input
    and reports on standard output; the program's standard input is empty and what it prints comes back to be counted.
    """
    code = boot_code(module, draw_uid(), limits, alone=kind == "rlimit")
    return subprocess.Popen(
        command(kind, code, [*map(str, fds), folder], limits),  # the folder names the run in lists of processes
        stdin=subprocess.PIPE if judge else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if judge else subprocess.STDOUT,
        pass_fds=fds,
        cwd=folder,
        env={"TMPDIR": folder, "PATH": "/usr/bin:/bin"},
        start_new_session=True,
    )
