"""Programs that try to escape the sandbox, to stay behind, or to pass without solving the task.

Each is asked for `add`, whose tests are `add(1, 2) == 3` and `add(40, 2) == 42`. MARK stands for a text unique to the
test, FOLDER for a folder outside the sandbox.
"""

RIGHT = "def add(a, b):\n    return a + b\n"

_TIME = {
    "endless_loop": "def add(a, b):\n    while True: pass",
    "endless_at_load": "while True: pass",
    "sleeps": "import time\ndef add(a, b):\n    time.sleep(1000)",
    "catches_everything": "def add(a, b):\n    while True:\n        try:\n            while True: pass\n"
    "        except BaseException: pass",
    "ignores_signals": "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n"
    "    except (OSError, ValueError): pass\ndef add(a, b):\n    while True: pass",
    "power_tower": "def add(a, b):\n    return 9 ** 9 ** 9",
    "blocked_signals": "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n"
    "def add(a, b):\n    while True: pass",
    "regular_expression": "import re\ndef add(a, b):\n    return bool(re.match('(a+)+$', 'a' * 60 + 'b'))",
    "reads_standard_input": "import sys\ndef add(a, b):\n    return int(input()) or int(sys.stdin.read())",
}

_PROCESSES = {
    "forks_sleepers": "import os, time\nfor _ in range(20):\n    if os.fork() == 0:\n        time.sleep(1000)\n"
    + RIGHT,
    "fork_bomb": "import os\nwhile True:\n    os.fork()",
    "fork_at_call": "import os, time\ndef add(a, b):\n    if os.fork() == 0: time.sleep(1000)\n    return a + b",
    "double_fork": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(1000)\n"
    + RIGHT,
    "ctypes_fork": "import ctypes, time\nif ctypes.CDLL(None).fork() == 0: time.sleep(1000)\n" + RIGHT,
    "ctypes_clone": "import ctypes\nctypes.CDLL(None).syscall(56, 17, 0, 0, 0, 0)\nwhile True: pass",
    "subprocess": "import subprocess\nsubprocess.Popen(['sleep', 'MARK'])\n" + RIGHT,
    "system": "import os\ndef add(a, b):\n    os.system('sleep 1000 &')\n    return a + b",
    "exec": "import os\nos.execv('/bin/sh', ['sh', '-c', 'sleep 1000'])",
    "spawn": "import multiprocessing\nmultiprocessing.get_context('spawn').Process(target=print).start()\n" + RIGHT,
    "threads": "from threading import Thread\nimport time\nThread(target=time.sleep, args=[1000]).start()\n" + RIGHT,
    "daemon_thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
    + RIGHT,
    "kills_parent": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n" + RIGHT,
    "kills_all": "import os\nos.kill(-1, 9)\n" + RIGHT,
    "kills_group": "import os\ndef add(a, b):\n    os.killpg(0, 9)\n    return a + b",
    "traces_parent": "import ctypes, os\nctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0)\n" + RIGHT,
}

_RESOURCES = {
    "memory_flood": "def add(a, b):\n    x = []\n    while True: x.append(bytearray(10 ** 7))",
    "memory_at_once": "def add(a, b):\n    return len(bytearray(10 ** 12))",
    "mapped_memory": "import mmap\ndef add(a, b):\n    return len(mmap.mmap(-1, 10 ** 11))",
    "output_flood": "def add(a, b):\n    while True: print('x' * 10 ** 5)",
    "error_flood": "import sys\nwhile True: sys.stderr.write('x' * 10 ** 5)",
    "answer_flood": "def add(a, b):\n    return 'x' * 10 ** 8",
    "deep_answer": "def add(a, b):\n    x = []\n    for _ in range(10 ** 6): x = [x]\n    return x",
    "endless_answer": "def add(a, b):\n    return iter(int, 1)",
    "huge_file": "def add(a, b):\n    with open('/tmp/MARK', 'wb') as f:\n        while True: f.write(b'x' * 10 ** 6)",
    "many_files": "def add(a, b):\n    for n in range(10 ** 9): open(f'/tmp/{n}-MARK', 'w').write('x' * 1000)",
    "open_files": "def add(a, b):\n    return len([open('/dev/null') for _ in range(10 ** 5)])",
    "deep_recursion": "import sys\nsys.setrecursionlimit(10 ** 9)\ndef add(a, b):\n    return add(a, b)",
    "stack_smash": "import ctypes\ndef add(a, b):\n    return ctypes.string_at(0)",
}

_WORLD = {
    "writes_outside": "open('FOLDER/MARK', 'w').write('here')\n" + RIGHT,
    "network": "import socket\ns = socket.create_connection(('127.0.0.1', 9), 2)\n" + RIGHT,
    "network_download": "import urllib.request\nurllib.request.urlopen('http://example.com', timeout=2)\n" + RIGHT,
    "environment": "import os\ndef add(a, b):\n    return int(os.environ['MASKGRAD_SECRET'])",
    "parent_environment": "import os\ndef add(a, b):\n    text = ''.join(open(f'/proc/{p}/environ').read() "
    "for p in os.listdir('/proc') if p.isdigit())\n    return int(text.split('MASKGRAD_SECRET=')[1][:2])",
    "deletes": "import shutil\nshutil.rmtree('FOLDER')\n" + RIGHT,
    "shadow_file": "def add(a, b):\n    return len(open('/etc/shadow').read())",
}

_CHEATS = {
    "exits_at_load": "import sys\nsys.exit(0)",
    "exits_at_call": "def add(a, b):\n    raise SystemExit(0)",
    "hard_exit": "import os\ndef add(a, b):\n    os._exit(0)",
    "hard_exit_at_load": "import os\nos._exit(0)",
    "exit_handler": "import atexit, os\natexit.register(lambda: os._exit(0))\ndef add(a, b):\n    quit()",
    "equal_to_all": "class T:\n    def __eq__(self, o): return True\n    def __ne__(self, o): return False\n"
    "def add(a, b): return T()",
    "equal_number": "class T(int):\n    def __eq__(self, o): return True\n    __hash__ = None\n"
    "def add(a, b): return T(7)",
    "equal_list": "class T(list):\n    def __eq__(self, o): return True\ndef add(a, b): return T()",
    "claims_to_be_int": "class T:\n    __class__ = int\n    def __eq__(s, o): return True\ndef add(a, b): return T()",
    "prints_marker": 'import os\nfor fd in range(3, 64):\n    try: os.write(fd, b\'{"marker": "", "started": true, \''
    ' b\'"results": [["ok", ""], ["ok", ""]]}\')\n    except OSError: pass\ndef add(a, b): return 0',
    "fakes_answers": "import json, os, struct\nbody = json.dumps({'value': True}).encode()\n"
    "for fd in range(3, 64):\n    for _ in range(9):\n        try: os.write(fd, struct.pack('>I', len(body)) + body)\n"
    "        except OSError: pass\ndef add(a, b): return 0",
    "patches_builtins": "import builtins\nbuiltins.exec = builtins.compile = lambda *a, **k: None\n"
    "builtins.AssertionError = type('E', (BaseException,), {})\ndef add(a, b): return 0",
    "patches_harness": "import sys\nfor m in list(sys.modules.values()):\n    for n in ('encode', 'send', 'decode'):\n"
    "        if hasattr(m, n): setattr(m, n, lambda *a, **k: {'value': True})\n"
    "sys.modules['__main__'].__dict__.clear()\ndef add(a, b): return 0",
    "reads_frames": "import sys\ndef add(a, b):\n    frame, seen = sys._getframe(), []\n    while frame:\n"
    "        seen += [v for v in frame.f_locals.values() if isinstance(v, str) and '==' in v]\n"
    "        frame = frame.f_back\n    return eval(seen[0].split('==')[1])",
    "searches_memory": "import gc\ndef add(a, b):\n    for o in gc.get_objects():\n"
    "        if isinstance(o, dict) and 'tests' in o: return eval(o['tests'][0].split('==')[1])\n    return 0",
    "reads_descriptors": "import os\ndef add(a, b):\n    for fd in range(3, 64):\n        try:\n"
    "            os.set_blocking(fd, False)\n            text = os.read(fd, 65536).decode()\n"
    "            if '==' in text: return int(text.split('==')[1][:2])\n        except OSError: pass\n    return 0",
    "swallows_assertions": "import sys\nsys.excepthook = lambda *a: None\n"
    "class AssertionError(BaseException): pass\ndef add(a, b): return 0",
    "renames_len": "def isinstance(*a): return True\ndef len(x): return 3\nclass E(Exception): pass\n"
    "def add(a, b): raise E('3')",
    "coroutine": "async def add(a, b):\n    return a + b",
    "generator": "def add(a, b):\n    yield a + b",
    "not_a_number": "def add(a, b):\n    return float('nan')",
    "lone_surrogate": "def add(a, b):\n    return '\\ud800'",
    "null_byte": "def add(a, b):\n    return 0\x00",
    "bad_exception": "class E(Exception):\n    def __str__(self): raise self\ndef add(a, b): raise E",
}

#: Verdicts depend on the answer alone, or on limits that both sandboxes have.
EVERYWHERE = {**_TIME, **_PROCESSES, **_RESOURCES, **_CHEATS, **_WORLD}
