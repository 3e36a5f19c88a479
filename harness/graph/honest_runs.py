"""Our own honest runs, which compute llama.cpp's graph with our ops. Whole runs of engines are
compared with them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch, join_batches
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.ops.build import Build
from lockstep.engine.quants.base import F32
from lockstep.harness.context.runner import Session
from lockstep.harness.context.suite import NOT_IN_ONE, NoAnswer, no_answer
from lockstep.harness.graph.floor import AT_ONCE, replay_floor, whole
from lockstep.harness.graph.program import Program
from lockstep.harness.graph.record import record
from lockstep.harness.graph.replay import replay
from lockstep.harness.graph.ways import Honest, Noisy, RoundedToHalves, Wide
from lockstep.harness.graph.wiring import weights_of
from lockstep.harness.judging.conversions import builds, in_bf16, in_halves, is_quantised
from lockstep.harness.judging.factor_designs import FactorDesign
from lockstep.harness.judging.noise import NoiseFloor
from lockstep.harness.judging.other_builds import other_builds
from lockstep.harness.processes.ahead import Ahead, in_shares, may_fork
from lockstep.harness.processes.wire import digest
from lockstep.harness.records import Rejected
from lockstep.harness.sites import is_matrix_of

HELD = 1 << 28  # bytes of outputs of concurrent runs, of which forks hold a copy


@dataclass(kw_only=True)
class AlongLlamaCpp:
    """Honest runs of any architecture, which compute llama.cpp's graph with our ops. They cannot
    reveal a wrong graph."""

    llama_cpp: Session
    file: GgufFile
    build: Build
    embeddings: bool = False  # True: outputs are embeddings instead of logits
    flash_attn: bool = False
    # llama.cpp on the same file with an F32 cache, for a subject that may have one
    in_full: Session | None = None
    begun: dict[bytes, Ahead] = field(default_factory=dict)  # noise floors that forks compute
    # program of the last runs with rounded factors, and its key
    rounded: tuple[bytes, Program] | None = None

    def recording(self, batches: Sequence[Batch]) -> Program:
        found = record(self.llama_cpp, batches, embeddings=self.embeddings)
        if isinstance(found, Rejected):  # no other engine was asked, so this shows no difference
            text = f"{self.llama_cpp.name} refuses the model: {found.message}"
            raise NoAnswer("not-compared", text, {})
        if not isinstance(found, Program):
            raise no_answer(self.llama_cpp.name, "capture", found)
        return found

    def program(self, batches: Sequence[Batch]) -> Program:
        """Return the program for all batches. The batches are joined into one if batch size does
        not change a token's result: sixty graphs of one token cost as much as one graph of
        thousands of tokens. The batches stay separate if the model keeps nothing from batch to
        batch."""
        apart = str(self.file.metadata["general.architecture"].data) in NOT_IN_ONE
        apart |= self.flash_attn or self.embeddings or any(b.encoder for b in batches)
        program = self.recording(batches if apart else (join_batches(batches),))
        if not apart and len(batches) > 1 and not program.caches:
            program = self.recording(batches)
        if not program.has_result:
            raise NoAnswer("not-applicable", "the model has no logits", {})
        return program

    def begin(self, batches: Sequence[Batch], *, seed: int, runs: int) -> None:
        """Begin to compute a noise floor in a fork, while engines are asked."""
        if may_fork():
            with suppress(NoAnswer):  # reported when the floor is needed
                key, work = self.work(batches, seed, runs)
                if key not in self.begun:
                    self.begun[key] = Ahead(work)

    def floor(self, batches: Sequence[Batch], *, seed: int, runs: int) -> NoiseFloor:
        key, work = self.work(batches, seed, runs)
        *logits, relative = self.begun.pop(key).result() if key in self.begun else work()
        return NoiseFloor(logits=tuple(logits), relative=float(relative))

    def work(
        self, batches: Sequence[Batch], seed: int, runs: int
    ) -> tuple[bytes, Callable[[], list[NDArray[Any]]]]:
        """Return a name for the work, and a function that returns the outputs of each batch and
        then the noise."""
        program, file = self.program(batches), self.file

        def work() -> list[NDArray[Any]]:
            found = replay_floor(program, file, self.build, seed=seed, runs=runs)
            return [*found.outputs, np.array(found.relative)]

        return digest(batches, seed, runs), work

    def close(self) -> None:
        for ahead in self.begun.values():
            ahead.close()

    def unlucky(self, batches: Sequence[Batch], *, seed: int, runs: int) -> Iterator[F32]:
        program = self.program(batches)

        def outputs(seeds: Sequence[int]) -> list[F32]:
            runs = (replay(program, self.file, self.build, Noisy(seed=s)) for s in seeds)
            return [np.concatenate(whole(run)) for run in runs]

        done, room = 0, 1
        while done < runs:  # doubles each time, because the caller may stop early
            some = range(seed + done, seed + min(runs, 2 * done or 1, done + room))
            for _, found in in_shares(outputs, some, AT_ONCE if len(some) > 1 else 1):
                room = max(AT_ONCE, HELD // max(1, found[0].nbytes))
                yield from found
            done += len(some)

    def converted_runs(
        self, batches: Sequence[Batch], only: Sequence[int] | None = None
    ) -> Iterator[F32]:
        every = list(self.other_designs())
        for design in every if only is None else [every[n] for n in only]:
            program = design.along.program(batches)
            found = np.concatenate(whole(replay(program, self.file, design.build, design.way)))
            yield found.astype(np.float32)

    def other_designs(self) -> Iterator["Design"]:
        """Yield other honest designs: other formats for activations, ggml on other processors, and
        designs with keys and values in F32."""
        wide = Wide(sizes=False)
        formats = list(builds(self.build)) if is_quantised(self.file) else []
        yield from (Design(along=self, build=build, way=wide) for build in formats)
        ops = ("MUL_MAT", "FLASH_ATTN_EXT") if self.flash_attn else ("MUL_MAT",)
        for build in other_builds(self.build, ops):
            yield Design(along=self, build=build, way=Honest(sizes=False))
        if self.in_full is None:
            return
        full = replace(self, llama_cpp=self.in_full, flash_attn=False, in_full=None, begun={})
        plain = replace(self.build, plain=True)
        yield Design(along=full, build=plain, way=wide)
        if formats:
            yield Design(along=full, build=self.build, way=Honest(sizes=False))
        yield from (Design(along=full, build=build, way=wide) for build in formats)

    def kept_in(self, kind: str, batches: Sequence[Batch]) -> F32:
        """Return the outputs, (outputs, vocabulary), of an engine that rounds every result to this
        type. kind: F16 or BF16."""
        way = RoundedToHalves(keep={"F16": in_halves, "BF16": in_bf16}[kind], sizes=False)
        found = whole(replay(self.program(batches), self.file, self.build, way))
        return np.concatenate(found).astype(np.float32)

    def rounded_run(
        self, batches: Sequence[Batch], design: FactorDesign, *, seed: int, runs: int
    ) -> NoiseFloor:
        key = digest(batches, 0, 0)
        if self.rounded is None or self.rounded[0] != key:
            self.rounded = key, self.program(batches)
        program, build = self.rounded[1], design.build(self.build)
        way = Wide(sizes=False)
        found = replay_floor(program, self.file, build, seed=seed, runs=runs, way=way)
        return NoiseFloor(logits=found.outputs, relative=found.relative)

    def without(self, batches: Sequence[Batch], tensors: Sequence[str]) -> F32 | None:
        program = self.program(batches)
        zeros = {
            graph.place(node): np.zeros(node.result.ne[::-1], np.float32)
            for graph in program.graphs
            for node in graph.nodes
            if any(is_matrix_of(name, tensors) for name in weights_of(graph, node))
        }
        if not zeros:
            return None
        found = whole(replay(program, self.file, self.build, Honest(sizes=False), values=zeros))
        return np.concatenate(found).astype(np.float32)

    def logits(self, batches: Sequence[Batch]) -> tuple[F32, F32]:
        program = self.program(batches)
        mirror = whole(replay(program, self.file, self.build, Honest(sizes=False)))
        wide = replace(self.build, plain=True)
        plain = whole(replay(program, self.file, wide, Wide(sizes=False)))
        return np.concatenate(mirror), np.concatenate(plain).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class Design:
    """The design of an honest engine that differs from llama.cpp: the graph that it runs, and
    how."""

    along: AlongLlamaCpp
    build: Build
    way: Honest
