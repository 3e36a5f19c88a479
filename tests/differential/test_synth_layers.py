"""Every layer of a synthesised model affects its outputs, so a fault in it can be seen."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.ops.build import Build
from lockstep.harness.check.check import lanes_of
from lockstep.harness.context.runner import Runner
from lockstep.harness.graph.floor import whole
from lockstep.harness.graph.program import Program
from lockstep.harness.graph.record import record
from lockstep.harness.graph.replay import replay
from lockstep.harness.judging.compare import largest, worst_distance
from lockstep.harness.records import EXACT, Answered
from lockstep.harness.shadow.models import make_variants

# a hundredth of the size, which another epsilon would change, is far above float32's last bits
SEEN = 0.01
# tensors whose results a layer adds to the residual: in its mixer, and in its feed-forward network
LAST = re.compile(
    r"(blk\.\d+)\.(?:(attn_output|ssm_out|time_mix_output)|(ffn_down|channel_mix_value)\w*)\.weight"
)
Change = Callable[[NDArray[Any]], NDArray[Any]]


def changed(path: Path, to: Path, names: list[str], change: Change) -> Path:
    raw = bytearray(path.read_bytes())
    with GgufFile.open(path) as file:
        for name in names:
            start = file.data_offset + file.tensors[name].offset
            values = change(np.array(file.raw(name).view("<f4"))).astype("<f4").tobytes()
            raw[start : start + len(values)] = values
    to.write_bytes(raw)
    return to


def outputs(program: Program, build: Build, path: Path) -> tuple[NDArray[Any], ...]:
    with GgufFile.open(path) as file:
        return whole(replay(program, file, build))


def moved(path: Path) -> Iterator[tuple[str, float]]:
    """Yield the change of the outputs, as a share of the largest output, if a mixer or network adds
    zero."""
    with Runner().open("llama.cpp", path, EXACT) as session:
        info = session.ask("describe")
        assert isinstance(info, Answered)
        build = Build(lanes=lanes_of(info.value.build), generic=info.value.generic)
        program = record(session, (Batch.of([5, 42, 79, 16, 53, 90]),))
    assert isinstance(program, Program), program
    parts: dict[str, list[str]] = defaultdict(list)
    with GgufFile.open(path) as file:
        for name in file.tensors:
            if found := LAST.fullmatch(name):
                parts[f"{found[1]} {'mixer' if found[2] else 'network'}"].append(name)
    assert parts
    honest = outputs(program, build, path)
    for part, names in parts.items():
        without = changed(path, path.with_suffix(".without"), names, np.zeros_like)
        far = max(map(worst_distance, honest, outputs(program, build, without)))
        yield part, far / max(map(largest, honest))


@pytest.mark.parametrize("name", ["llama", "mamba", "mamba2", "jamba", "plamo2", "bailingmoe3"])
def test_output_of_any_layer_moves_the_logits(name: str, tmp_path: Path) -> None:
    (path,) = make_variants([name], tmp_path)
    assert {part: far for part, far in moved(path) if far < SEEN} == {}


def test_factors_near_zero_hide_a_layer(tmp_path: Path) -> None:
    """Factors were once drawn near zero, like the elements of a matrix."""
    (path,) = make_variants(["llama"], tmp_path)
    with GgufFile.open(path) as file:
        factors = [tensor for tensor in file.tensors if tensor.endswith(".scale")]
    assert factors
    dim = changed(path, tmp_path / "dim.gguf", factors, lambda values: values * 0.1)
    assert any(far < SEEN for _, far in moved(dim))
