"""llama.cpp's graph of a tiny model, engines' tensors of this graph, and the findings on them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.ops.build import Build
from lockstep.harness.check.check import lanes_of
from lockstep.harness.context.runner import Runner
from lockstep.harness.graph.program import Program
from lockstep.harness.graph.record import record
from lockstep.harness.graph.replay import replay
from lockstep.harness.graph.segments import SegmentJudge
from lockstep.harness.graph.ways import Honest
from lockstep.harness.graph.wiring import Wire, wires_of
from lockstep.harness.judging.judge import SiteFinding
from lockstep.harness.records import EXACT, Answered
from lockstep.harness.shadow.models import make_variant, open_for_variants
from lockstep.harness.synth.any_arch import variant_named

BATCHES = (Batch.of([5, 42, 79, 16, 53]), Batch.of([90], start=5))
LAYERS = ("l_out", "result_norm", "result_output")


@dataclass(frozen=True, kw_only=True)
class Recorded:
    program: Program
    wires: dict[Any, Wire]
    file: GgufFile
    build: Build

    def run(
        self,
        way: Honest,
        *,
        plain: bool = False,
        values: Mapping[Any, NDArray[Any]] | None = None,
    ) -> dict[Any, NDArray[Any]]:
        """Return the values of an engine's own run. values: values that replace those at some
        nodes."""
        found = {}

        def see(graph: Any, node: Any, value: NDArray[Any]) -> None:
            kind = np.float32 if value.dtype.kind == "f" else value.dtype
            found[graph.place(node)] = value.astype(kind)

        assert not replay(
            self.program, self.file, replace(self.build, plain=plain), way, trace=see, values=values
        ).missing
        return found

    def accused(
        self, values: dict[Any, NDArray[Any]], only: tuple[str, ...] = ()
    ) -> list[SiteFinding]:
        shown = {
            place: value
            for place, value in values.items()
            if not only or self.wires[place].site.name in only
        }
        judge = SegmentJudge(
            program=self.program, wires=self.wires, file=self.file, build=self.build, shown=shown
        )
        return [f for f in judge.findings() if f.mismatch is not None]


def variant_of(arch: str, path: Path, **how: Any) -> Path:
    """Write a tiny model of an architecture, with the tensor names that llama.cpp uses."""
    with open_for_variants() as namer:
        make_variant(variant_named(arch), path, session=namer, **how)
    return path


def as_it_is(_: Path) -> None:
    """Return the file unchanged."""


@contextmanager
def recorded(
    arch: str,
    folder: Path,
    change: Callable[[Path], None] = as_it_is,
    batches: Sequence[Batch] = BATCHES,
) -> Iterator[Recorded]:
    """Record a run of llama.cpp. change: changes the model's file first."""
    path = variant_of(arch, folder / f"{arch}.gguf")
    change(path)
    with GgufFile.open(path) as file, Runner().open("llama.cpp", path, EXACT) as session:
        info = session.ask("describe")
        assert isinstance(info, Answered)
        program = record(session, batches)
        assert isinstance(program, Program)
        yield Recorded(
            program=program,
            wires=wires_of(program),
            file=file,
            build=Build(lanes=lanes_of(info.value.build), generic=info.value.generic),
        )
