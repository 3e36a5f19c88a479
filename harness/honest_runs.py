"""Runs of our own by which whole runs are judged: llama.cpp's graph with our ops."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from engine.batch import Batch, joined
from engine.gguf_file import GgufFile
from engine.ops.build import Build
from engine.quants.base import F32
from engine.split_files import open_model
from harness.conversions import builds, is_quantised
from harness.graph.floor import replay_floor, whole
from harness.graph.program import Program
from harness.graph.record import record
from harness.graph.replay import replay
from harness.graph.ways import Noisy, Wide
from harness.noise import NoiseFloor
from harness.records import Rejected
from harness.runner import Session
from harness.suites.base import NoAnswer, no_answer


@dataclass(kw_only=True)
class AlongLlamaCpp:
    """Of any architecture: llama.cpp's graph replayed with our ops; a wrong graph is not seen."""

    llama_cpp: Session
    path: Path
    build: Build
    embeddings: bool = False  # instead of logits
    flash_attn: bool = False

    @cached_property
    def file(self) -> GgufFile:
        return open_model(self.path)

    def recording(self, batches: Sequence[Batch]) -> Program:
        found = record(self.llama_cpp, batches, embeddings=self.embeddings)
        if isinstance(found, Rejected):  # nobody else was asked: no two engines differ by it
            text = f"{self.llama_cpp.name} refuses the model: {found.message}"
            raise NoAnswer("not-compared", text, {})
        if not isinstance(found, Program):
            raise no_answer(self.llama_cpp.name, "capture", found)
        return found

    def program(self, batches: Sequence[Batch]) -> Program:
        """Of all batches at once where each token is computed alike in a batch of any size: sixty
        graphs of one token cost as much as one of thousands."""
        alike = not (self.flash_attn or self.embeddings or any(b.encoder for b in batches))
        program = self.recording((joined(batches),) if alike else batches)
        if not program.has_result:
            raise NoAnswer("not-applicable", "the model has no logits", {})
        return program

    def floor(self, batches: Sequence[Batch], *, seed: int, runs: int) -> NoiseFloor:
        program = self.program(batches)
        found = replay_floor(program, self.file, self.build, seed=seed, runs=runs)
        return NoiseFloor(logits=found.outputs, relative=found.relative)

    def unlucky(self, batches: Sequence[Batch], *, seed: int, runs: int) -> Iterator[F32]:
        program = self.program(batches)
        for i in range(runs):
            yield np.concatenate(whole(replay(program, self.file, self.build, Noisy(seed + i))))

    def converted(self, batches: Sequence[Batch]) -> Iterator[F32]:
        if is_quantised(self.file):
            program = self.program(batches)
            for build in builds(self.build):
                found = np.concatenate(whole(replay(program, self.file, build, Wide())))
                yield found.astype(np.float32)

    def logits(self, batches: Sequence[Batch]) -> tuple[F32, F32]:
        program = self.program(batches)
        mirror = whole(replay(program, self.file, self.build))
        plain = whole(replay(program, self.file, replace(self.build, plain=True), Wide()))
        return np.concatenate(mirror), np.concatenate(plain).astype(np.float32)
