"""Measures how much a capture slows llama.cpp: decodes per second without a callback, with an empty
callback, and with a capture."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from lockstep.engine.batch import Batch
from lockstep.harness.bench.base import (
    Bench,
    BenchPlan,
    BenchRow,
    Progress,
    Promise,
    why_unmeasured,
)
from lockstep.harness.check.inputs import check_file
from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.records import PRESETS, Answered
from lockstep.harness.synth.builtin import BUILTIN
from lockstep.harness.synth.draws import integers, stream
from lockstep.harness.synth.llama import write_llama

ENGINE = "llama.cpp"
CAPTURE, PLAIN, CALLBACK, COPY = "capture", "plain", "callback", "copy"
MOST = 3.0  # promised limit of a capture in plain decodes, without the time to copy bytes
PROMPT, STEPS = 64, 16
SMALLEST_VOCABULARY = 32
WAITING = "OMP_WAIT_POLICY"


class ShadowBench(Bench, name="shadow"):
    """Benchmark of capture. A target is a GGUF file or a built-in model; its rows are a prompt and
    single tokens."""

    unit = "decodes"
    engines: ClassVar[dict[str, str]] = {
        CAPTURE: "captured",
        PLAIN: "plain",
        CALLBACK: "callback",
        COPY: "copy",
    }
    threads = (1,)

    def targets(self) -> list[str]:
        return ["builtin:f32"]

    def run(self, plan: BenchPlan, progress: Progress) -> Iterator[BenchRow]:
        with threads_spin(), tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
            for target in plan.targets or self.targets():
                path = model_of(target, Path(folder))
                for preset in PRESETS:
                    with Runner().open(ENGINE, path, PRESETS[preset]) as session:
                        for name, batches in work(plan.seed).items():
                            text = f"{path.stem}, {preset}, {name}"
                            yield row(text, session, batches, plan.rounds, progress)

    def promises(self, rows: Sequence[BenchRow]) -> list[Promise]:
        return [
            Promise(
                text=f"{row.target}: three plain decodes and a copy against a capture",
                least=1.0,
                found=row.rates[CAPTURE, 1] * (MOST / row.rates[PLAIN, 1] + 1 / row.rates[COPY, 1]),
            )
            for row in rows
        ]


@contextmanager
def threads_spin() -> Iterator[None]:
    """Let idle threads spin, as they do for users of llama.cpp, unless the variable is set. If the
    threads sleep, waking them for a node takes longer than computing the node. Nothing else runs
    during this benchmark, so spinning threads slow nothing down."""
    before = os.environ.get(WAITING)
    os.environ[WAITING] = before or "active"
    try:
        yield
    finally:
        del os.environ[WAITING]
        if before is not None:
            os.environ[WAITING] = before


def model_of(target: str, folder: Path) -> Path:
    name = target.removeprefix("builtin:")
    if target != name and name in BUILTIN:
        write_llama(BUILTIN[name], folder / f"{name}.gguf")
        return folder / f"{name}.gguf"
    return check_file(Path(target), f", and no built-in model ({', '.join(BUILTIN)})")


def work(seed: int) -> dict[str, tuple[Batch, ...]]:
    ids = integers(stream(seed, "bench.shadow"), PROMPT + STEPS, SMALLEST_VOCABULARY).tolist()
    prompt = Batch.of(ids[:PROMPT])
    steps = [Batch.of([token], start=PROMPT + i) for i, token in enumerate(ids[PROMPT:])]
    return {f"prompt of {PROMPT}": (prompt,), f"{STEPS} single tokens": (prompt, *steps)}


def row(
    name: str, session: Session, batches: tuple[Batch, ...], rounds: int, progress: Progress
) -> BenchRow:
    """Return a row with the highest rates of all rounds, because other load on the machine can only
    lower a rate."""
    best: dict[str, float] = {}
    for i in range(rounds):
        progress(name, f"round {i + 1} of {rounds}")
        outcome = session.ask("time_capture", batches)
        if not isinstance(outcome, Answered):
            raise why_unmeasured(ENGINE, "time_capture", outcome)
        for what in (CAPTURE, PLAIN, CALLBACK, COPY):
            best[what] = min(outcome.value[what], best.get(what, float("inf")))
    return BenchRow(target=name, rates={(what, 1): 1 / value for what, value in best.items()})
