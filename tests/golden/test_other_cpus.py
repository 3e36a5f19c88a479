"""Vectors have the same bytes on other CPUs. numpy, BLAS, numba and libm are limited to the
features of older CPUs."""

import json
import os
import subprocess
import sys

import pytest

from tests.golden.other_cpu import features
from tests.places import ROOT

# variables that restrict BLAS, numba and glibc; they have no effect on other processors
CPUS = {
    "AVX2": ("AVX512 X86_V4", {"OPENBLAS_CORETYPE": "Haswell", "NUMBA_CPU_NAME": "haswell"}),
    "SSE4": ("AVX FMA X86_V3 X86_V4", {"OPENBLAS_CORETYPE": "Nehalem"}),
    "SSE3": (
        "",  # all features that can be disabled
        {
            "OPENBLAS_CORETYPE": "Prescott",
            "NUMBA_CPU_NAME": "generic",
            "NUMBA_CPU_FEATURES": "",
            "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX2,-FMA,-FMA4",
        },
    ),
}


@pytest.mark.parametrize("cpu", CPUS)
def test_vectors_made_on_another_cpu_are_the_same_bytes(cpu: str) -> None:
    names, variables = CPUS[cpu]
    other, here = features()
    off = [f for f in other if f in here and any(part in f for part in names.split() or [""])]
    done = subprocess.run(
        [sys.executable, "-m", "tests.golden.other_cpu"],
        cwd=ROOT,
        env={**os.environ, **variables, "NPY_DISABLE_CPU_FEATURES": " ".join(off)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["made"] > 500
    assert set(off).isdisjoint(said["features"])
    assert said["others"] == []
