"""One thread per test process: the default run has a process per core (see addopts in pyproject.toml)."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
