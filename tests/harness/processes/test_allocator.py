"""The process keeps the memory of freed arrays, so that the next arrays of this size cause no page
faults."""

import subprocess
import sys

import pytest

CHURN = """
import resource, sys
import numpy as np
from lockstep.harness.processes.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()

def arrays():
    return [np.ones(1 << 19), np.ones(1 << 18), np.ones(1 << 18), np.ones(1 << 18)]

arrays()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    arrays()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    command = [sys.executable, "-c", CHURN, how]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_freed_arrays_cost_no_page_faults() -> None:
    assert faults("kept") < 500  # otherwise there are some 40,000, or fewer with larger pages
