"""Measures the judgement by segments on engines with one wrong op and on honest engines.

    python tests/scripts/segment_faults.py --faults 100 --honest 100

Each engine is a replay of llama.cpp's graph of a tiny model that shows only tensors: every op, the
layers' outputs, or the logits. A wrong engine has one wrong op in one layer. An honest engine makes
none of ggml's roundings, keeps float64 from op to op, adds in another order, or is llama.cpp.
"""

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.node import Node
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.near import Expected
from lockstep.harness.check.check import lanes_of
from lockstep.harness.context.runner import Runner
from lockstep.harness.graph.program import Place, Program
from lockstep.harness.graph.record import record
from lockstep.harness.graph.replay import replay
from lockstep.harness.graph.segment import segments_of
from lockstep.harness.graph.segments import SegmentJudge
from lockstep.harness.graph.ways import Honest, Noisy, Wide
from lockstep.harness.graph.wiring import Wire, wires_of
from lockstep.harness.records import EXACT, Answered
from lockstep.harness.shadow.models import make_variant, open_for_variants
from lockstep.harness.synth.any_arch import variant_named

ARCHITECTURES = (
    *("llama", "gemma2", "gemma3", "mamba", "deepseek2", "phi3", "qwen3moe", "gpt-oss", "olmo2"),
    "jamba",
)
WRONG = {  # op: a wrong result of real engines
    "ROPE": lambda v: np.roll(v, 1, axis=-1),  # wrong pairs
    "RMS_NORM": lambda v: v * np.float32(1.01),  # wrong epsilon
    "NORM": lambda v: v + np.float32(0.01),  # without subtracting the mean
    "SOFT_MAX": lambda v: np.roll(v, 1, axis=-1),  # wrong mask
    "MUL_MAT": lambda v: np.roll(v, 1, axis=-1),  # rows of the matrix are shifted by one
    "SSM_SCAN": lambda v: v * np.float32(1.01),
    "GLU": lambda v: v * np.float32(1.01),  # another approximation
}
LAYER_END = re.compile(r"(l_out|result_norm|result_output).*")
KINDS = {
    "every op": lambda wire: True,
    "layers": lambda wire: LAYER_END.fullmatch(wire.site.name) is not None,
    "logits": lambda wire: wire.site.name.startswith("result_output"),
}


@dataclass(frozen=True)
class Faulty(Honest):
    """An engine with one wrong node in the graphs of step 0, given by the node's index."""

    index: int = -1

    def result(self, node: Node, found: Expected) -> NDArray[Any]:
        value = super().result(node, found)
        if node.index == self.index and node.step == 0:
            wrong: NDArray[Any] = WRONG[node.op](value)
            return wrong
        return value


@dataclass(frozen=True)
class InAnyOrder(Noisy):
    """An engine with random errors of up to half of each formula's bound; the other half is for
    rounding."""

    def result(self, node: Node, found: Expected) -> NDArray[Any]:
        return super().result(node, replace(found, allowed=np.asarray(found.allowed) / 2))


def shown_by(program: Program, file: GgufFile, build: Build, way: Honest) -> dict[Place, Any]:
    """Return every result of an engine's own run, in its tensor's type."""
    found: dict[Place, Any] = {}

    def see(graph: Any, node: Any, value: NDArray[Any]) -> None:
        found[graph.place(node)] = value.astype(
            np.float32 if value.dtype.kind == "f" else value.dtype
        )

    run = replay(program, file, build, way, trace=see)
    assert not run.missing, run.missing[0]
    return found


def judge_of(
    program: Program,
    wires: Mapping[Place, Wire],
    file: GgufFile,
    build: Build,
    values: Mapping[Place, Any],
    kind: str,
) -> SegmentJudge:
    shown = {place: value for place, value in values.items() if KINDS[kind](wires[place])}
    return SegmentJudge(program=program, wires=wires, file=file, build=build, shown=shown)


def accused(judge: SegmentJudge) -> list[Any]:
    return [finding for finding in judge.findings() if finding.mismatch is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--honest", type=int, default=100)
    parser.add_argument("--quant", default="F32")
    parser.add_argument("--arch", nargs="*", default=ARCHITECTURES)
    asked = parser.parse_args()
    score: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, open_for_variants() as namer:
        for number, name in enumerate(asked.arch):
            path = Path(folder) / f"{name}.gguf"
            make_variant(variant_named(name), path, seed=number, quant=asked.quant, session=namer)
            share = slice(number, None, len(asked.arch))
            of_model(name, path, range(asked.faults)[share], range(asked.honest)[share], score)
    for key, n in sorted(score.items()):
        sys.stdout.write(f"{key}: {n}\n")


def of_model(name: str, path: Path, faults: range, honest: range, score: Counter[str]) -> None:
    tokens = [(37 * i + 5) % 100 for i in range(14)]
    batches = (Batch.of(tokens[:12]), Batch.of(tokens[12:13], start=12))
    with GgufFile.open(path) as file, Runner().open("llama.cpp", path, EXACT) as session:
        info = session.ask("describe")
        assert isinstance(info, Answered)
        build = Build(lanes=lanes_of(info.value.build), generic=info.value.generic)
        program = record(session, batches, keep=lambda node: True)
        assert isinstance(program, Program), program
        shown = {(g.step, g.ubatch, i): v for g in program.graphs for i, v in g.shown.items()}
        wires = wires_of(program)
        first = program.graphs[0]
        targets = [
            n for n in first.nodes if n.op in WRONG and wires[first.place(n)].layer is not None
        ]
        for seed in faults:
            node = targets[seed * 7919 % len(targets)]
            wire = wires[first.place(node)]
            values = shown_by(program, file, build, Faulty(node.index))
            for kind in KINDS:
                judge = judge_of(program, wires, file, build, values, kind)
                found = accused(judge)
                said = ending(kind, wire, found, judge)
                score[f"fault, {kind}, {said}"] += 1
                if said != "located":
                    names = [str(f.site) for f in found][:3]
                    far = moved(shown_by(program, file, build, Honest()), values, wires)
                    sys.stdout.write(
                        f"{name} {node.op} {wire.site}: {kind}: {said} {names}; {far}\n"
                    )
        for seed in honest:
            ways = (
                (build, InAnyOrder(1000 + seed)),
                (replace(build, plain=True), Wide()),
                (replace(build, plain=True), Honest()),
                (build, Wide()),
            )
            which = seed // 10 % 5
            values = shown if which == 4 else shown_by(program, file, *ways[which])
            for kind in KINDS:
                found = accused(judge_of(program, wires, file, build, values, kind))
                score[f"honest, {kind}, {'accused' if found else 'agrees'}"] += 1
                for f in found[:1]:
                    m = f.mismatch
                    sys.stdout.write(
                        f"{name} honest {seed} {kind}: {f.site} {f.op} {m} {f.reason}\n"
                    )
        sys.stdout.flush()


def moved(
    right: Mapping[Place, Any], wrong: Mapping[Place, Any], wires: Mapping[Place, Wire]
) -> str:
    """Return a description of how far the fault moves the logits, in float32 steps of the largest
    logit."""
    logits = [place for place in right if KINDS["logits"](wires[place])]
    step = max(np.spacing(np.abs(right[place]).max()) for place in logits)
    far = max(np.abs(right[place] - wrong[place]).max() for place in logits)
    return f"moves the logits by {far / step:.0f} steps of the largest"


def ending(kind: str, wire: Wire, found: list[Any], judge: SegmentJudge) -> str:
    """Return a description that says whether the fault, and nothing else, is found at its place."""
    if not found:
        return "below the noise"
    if kind == "logits":
        return "located"
    if kind == "every op":
        return "located" if [f.site for f in found] == [wire.site] else "elsewhere"
    holds = {
        s.wire.site
        for s in segments_of(judge.program, judge.wires, judge.shown)
        if wire.site in (s.wire.site, *s.inside)
    }
    # the cache itself is not shown, so later steps of the layer show it
    there = all(f.site in holds or f.layer == wire.layer for f in found)
    return "located" if there else "elsewhere"


main()
