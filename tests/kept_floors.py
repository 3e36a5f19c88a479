"""Noise floors, measured once for all tests of a session.

The floors are stored in files, so that pytest's workers and their forks share them. A file's name
is a hash of everything that the floor depends on.
"""

import hashlib
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.ggml.base import MEANINGS
from lockstep.harness.graph import honest_runs
from lockstep.harness.graph.floor import HONEST, ReplayFloor, replay_floor
from lockstep.harness.graph.program import Program
from lockstep.harness.graph.ways import Honest


@contextmanager
def floors_kept_in(folder: Path) -> Iterator[None]:
    folder.mkdir(exist_ok=True)

    def floor(
        program: Program,
        file: GgufFile,
        build: Build,
        *,
        seed: int,
        runs: int,
        way: Honest = HONEST,
    ) -> ReplayFloor:
        path = folder / name_of(program, file, build, seed, runs, way)
        if path.exists():
            found: ReplayFloor = pickle.loads(path.read_bytes())
            return found
        found = replay_floor(program, file, build, seed=seed, runs=runs, way=way)
        new = path.with_suffix(f".{os.getpid()}")
        new.write_bytes(pickle.dumps(found))
        new.rename(path)  # renamed, so that other processes never see a partial file
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(honest_runs, "replay_floor", floor)
        yield


def name_of(
    program: Program,
    file: GgufFile,
    build: Build,
    seed: int,
    runs: int,
    way: Honest = HONEST,
) -> str:
    """Return a name made from the recorded run, the weights, the roundings and the random numbers.

    The name also depends on the definitions of ops, because a test may replace one.
    """
    weights = {root.name for g in program.graphs for root in g.roots if root.kind == "weight"}
    meanings = [(op, meaning.__module__, meaning.__qualname__) for op, meaning in MEANINGS.items()]
    found = hashlib.sha256(pickle.dumps((program, build, seed, runs, way, sorted(meanings))))
    for weight in sorted(weights & set(file.tensors)):
        found.update(pickle.dumps((weight, file.tensors[weight])))
        found.update(file.raw(weight))
    return found.hexdigest()
