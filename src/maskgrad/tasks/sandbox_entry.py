"""First thing that happens inside the sandbox: rights are given up and limits set, before any foreign code.

Runs inside the sandbox, so it imports the standard library alone.
"""

from __future__ import annotations

import os
import resource
import struct
import sys

_KEEP_CAPS, _DUMPABLE, _NO_NEW_PRIVILEGES, _DEATH_SIGNAL = 8, 4, 38, 1
_SECCOMP = 22
_CHANGING_FILES = 0b1_1111_1111_0010  # Landlock's rights to write, remove and make files and folders of every kind
_DAC_READ_SEARCH = 2
_CAPABILITY_VERSION = 0x20080522

#: Kernel's name of an architecture, and its numbers of the calls that make processes and threads (fork, vfork, clone,
#: clone3, execve, execveat), sockets, or act on other processes (kill, tkill, tgkill, pidfd_send_signal, ptrace,
#: process_vm_writev, io_uring_setup).
_FORBIDDEN = {
    "x86_64": (0xC000003E, (57, 58, 56, 435, 59, 322, 41, 62, 200, 234, 424, 101, 311, 425)),
    "aarch64": (0xC00000B7, (220, 435, 221, 281, 198, 129, 130, 131, 424, 117, 271, 425)),
}


def restrict(uid: int, limits: dict[str, int]) -> None:
    """Become `uid` if that is not 0, then set the limits, by the names of `resource`; none can be raised again."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_DEATH_SIGNAL, 9, 0, 0, 0)
    if uid:
        _become(libc, uid)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    libc.prctl(_DUMPABLE, 0, 0, 0, 0)  # other processes of this user may not look into this one
    if limits["RLIMIT_FSIZE"] == 0:
        _forbid_files(libc)
    _forbid_calls(libc)
    for name, value in limits.items():
        most = value + 1 if name == "RLIMIT_CPU" else value  # the soft limit tells why, the hard one cannot be ignored
        resource.setrlimit(getattr(resource, name), (value, most))


def _forbid_files(libc: object) -> None:
    """Forbid to make, write, remove or move any file (Landlock, where the kernel has it)."""
    import ctypes

    rights = ctypes.c_uint64(_CHANGING_FILES)
    call = libc.syscall  # type: ignore[attr-defined]
    ruleset = call(444, ctypes.byref(rights), 8, 0)  # landlock_create_ruleset: these rights, granted nowhere
    if ruleset >= 0:
        call(446, ruleset, 0)  # landlock_restrict_self
        os.close(ruleset)


def _forbid_calls(libc: object) -> None:
    """Have the kernel kill this process when it makes a forbidden call (seccomp, where the architecture is known).

    The filter in words: another architecture's call, or one of the numbers, kills; all else is allowed.
    """
    import ctypes

    machine = os.uname().machine
    if machine not in _FORBIDDEN:
        return
    architecture, numbers = _FORBIDDEN[machine]
    allow, kill = 0x7FFF0000, 0x80000000
    # (code, jump if true, jump if false, operand); 0x20 loads, 0x15 compares for equal, 0x35 for at least, 0x06 returns
    steps = [(0x20, 0, 0, 4), (0x15, 1, 0, architecture), (0x06, 0, 0, kill), (0x20, 0, 0, 0), (0x35, 0, 1, 1 << 30)]
    steps += [(0x06, 0, 0, kill)]
    for number in numbers:
        steps += [(0x15, 0, 1, number), (0x06, 0, 0, kill)]
    steps += [(0x06, 0, 0, allow)]
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    text = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(text))
    header = ctypes.create_string_buffer(program, len(program))
    libc.prctl(_SECCOMP, 2, ctypes.c_void_p(ctypes.addressof(header)), 0, 0)  # type: ignore[attr-defined]


def _become(libc: object, uid: int) -> None:
    """Give up root. Where the interpreter lies in a private folder the right to read (not to write) files is kept."""
    private = not os.path.exists("/python") and not _reachable(sys.base_prefix)
    if private:
        libc.prctl(_KEEP_CAPS, 1, 0, 0, 0)  # type: ignore[attr-defined]
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    if private:
        _keep_reading(libc)


def _reachable(folder: str) -> bool:
    """Whether a user without rights can enter a folder and all above it."""
    while os.stat(folder).st_mode & 1:
        if folder == os.path.dirname(folder):
            return True
        folder = os.path.dirname(folder)
    return False


def _keep_reading(libc: object) -> None:
    """Of all capabilities keep the one to read files."""
    import ctypes

    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    bit = 1 << _DAC_READ_SEARCH
    data = (ctypes.c_uint32 * 6)(bit, bit, 0, 0, 0, 0)
    if libc.capset(header, data) != 0:  # type: ignore[attr-defined]
        raise OSError("cannot give up root's capabilities")
