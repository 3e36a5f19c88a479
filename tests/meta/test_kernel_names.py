"""Compiled code is found by its function's name: kernels with the same name could be confused."""

import subprocess
import sys

PROGRAM = """
import gc, importlib, pkgutil
from collections import Counter
import lockstep.engine
from numba.core.dispatcher import Dispatcher

for module in pkgutil.walk_packages(lockstep.engine.__path__, "lockstep.engine."):
    importlib.import_module(module.name)
every = [d.py_func for d in gc.get_objects() if isinstance(d, Dispatcher)]
ours = [f for f in every if f.__module__.startswith("lockstep.")]
names = Counter((f.__module__, f.__qualname__) for f in ours)
print(len(names), *(".".join(name) for name, n in names.items() if n > 1))
"""


def test_kernels_have_unique_names() -> None:
    """numba also numbers the functions of a process, but stored code comes from many processes."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    n, *twice = run.stdout.split()
    assert int(n) > 100
    assert twice == []
