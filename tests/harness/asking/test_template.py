"""What a process that forks workers has loaded, and how."""

import os
import re
import subprocess
import sys

import pytest


def test_threads_of_llama_cpp_in_a_fork_wait_asleep_and_do_not_spin() -> None:
    """libgomp reads that once, when it is loaded: workers that share processors starve each other
    if it comes too late. It says itself what it has read."""
    wanted = os.environ | {"OMP_DISPLAY_ENV": "verbose"}
    wanted.pop("OMP_WAIT_POLICY", None)
    wanted.pop("GOMP_SPINCOUNT", None)
    program = "from lockstep.harness.asking.template_process import load; load()"
    run = subprocess.run(
        [sys.executable, "-c", program], env=wanted, capture_output=True, text=True, check=True
    )
    spins = set(re.findall(r"GOMP_SPINCOUNT = '(\d+)'", run.stderr))
    if not spins:
        pytest.skip("llama.cpp is not built with libgomp, or that does not say how it waits")
    assert spins == {"0"}
