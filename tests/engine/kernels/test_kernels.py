"""Compiled kernels: reuse of stored kernels, and kernels for other processors."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.kernels import unpacking

# --- cache on disk --------------------------------------------------------------------------------

SOURCE = """
from lockstep.engine.kernels.lanes import as_float, bytes_at, kernel, store

@kernel
def decode(raw, out):
    store(out, 0, as_float(bytes_at(raw, 0, 8)))
"""


def hits(path: Path) -> int:
    """Return how often the kernel of that file was loaded from disk."""
    kernel = compiled_in(path)
    kernel(np.zeros(8, np.uint8), np.empty(8, np.float32))
    return sum(kernel.stats.cache_hits.values())


def compiled_in(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.decode


def test_compiled_kernel_is_kept_until_its_sources_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kept.py"
    path.write_text(SOURCE)
    assert hits(path) == 0
    assert hits(path) == 1
    monkeypatch.setattr(unpacking, "SHARED_SOURCES", "lanes.py or a code book was edited")
    assert hits(path) == 0
    assert hits(path) == 1
    path.write_text(SOURCE + "\n")
    assert hits(path) == 0


def test_kernels_compiled_at_once_stay_separate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process reads the index before the other process writes; numba would give both kernels
    the same number."""
    path = tmp_path / "both.py"
    path.write_text(SOURCE)
    hits(path)
    kernel = compiled_in(path)
    index = kernel._cache._cache_file
    monkeypatch.setattr(index, "_load_index", dict)
    names: list[str] = []
    monkeypatch.setattr(index, "_save_data", lambda name, data: names.append(name))
    for key in ("of floats", "of integers", "of floats"):
        index.save(key, b"")
    assert names[0] == names[2] != names[1]


@pytest.mark.parametrize("edited", [*unpacking.SHARED, "codebooks/x.hex"])
def test_a_change_in_any_shared_file_is_seen(
    edited: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "codebooks").mkdir()
    for name in (*unpacking.SHARED, "codebooks/x.hex"):
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(unpacking, "HERE", tmp_path)
    monkeypatch.setattr(unpacking, "CODE_BOOKS", tmp_path / "codebooks")
    before = unpacking.shared_sources()
    assert unpacking.shared_sources() == before
    (tmp_path / edited).write_text("something else")
    assert unpacking.shared_sources() != before


# --- on other processors --------------------------------------------------------------------------

ELSEWHERE = """
import json, sys
import numpy as np
from lockstep.engine.quants.base import WeightFormat
from lockstep.engine.registry import import_members
import_members("lockstep.engine.quants")
found = {}
for name in sys.argv[1:]:
    kind = WeightFormat.member(name)
    raw = np.arange(60 * kind.layout.itemsize, dtype=np.uint32) * 2654435761 >> 24
    out = kind.dequantize(raw.astype(np.uint8))
    out[np.isnan(out)] = 0
    found[name] = out.view(np.uint32).tolist()
print(json.dumps(found))
"""
TYPICAL = ["F16", "Q4_0", "Q5_1", "Q2_K", "MXFP4", "TQ1_0"]


def decoded_there(processor: str | None) -> dict[str, list[int]]:
    """Return weights decoded by code for another processor, which numba stores under the
    processor's name."""
    there = {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": ""} if processor else {}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ELSEWHERE, *TYPICAL],
        cwd=Path(__file__).resolve().parents[3],
        env={**os.environ, **there},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    found: dict[str, list[int]] = json.loads(done.stdout)
    return found


def test_weights_are_equal_when_decoded_without_vector_extensions() -> None:
    here = decoded_there(None)
    assert all(len(set(values)) > 10 for values in here.values())
    assert decoded_there("generic") == here
