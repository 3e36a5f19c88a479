"""Tokens per second of our compiled engine and of llama.cpp, for a prompt and for single-token
steps."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from lockstep.engine.batch import Batch
from lockstep.harness.bench.base import (
    Bench,
    BenchPlan,
    BenchRow,
    Progress,
    Promise,
    why_unmeasured,
)
from lockstep.harness.bench.shadow import SMALLEST_VOCABULARY, model_of, threads_spin
from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.records import DEFAULT, Answered, Request
from lockstep.harness.synth.draws import integers, stream

OURS, THEIRS = "fast", "llama.cpp"
THREADS = 2
PROMPT, STEPS = 128, 32
# description -> tokens in one batch, and the promised ratio
WORK = {f"prompt of {PROMPT}": (PROMPT, 0.5), f"{STEPS} single tokens": (1, 0.9)}
SHORT = 5e-3  # seconds; with faster tokens, most of the time is spent in Python
LIMIT = 3600  # time limit of a turn in seconds


class RunBench(Bench, name="run"):
    """Benchmark of runs. A target is a GGUF file or a built-in model. Each turn opens the model
    again, so that the other engine's idle threads do not spin."""

    unit = "tokens"
    engines: ClassVar[dict[str, str]] = {OURS: "fast", THEIRS: "llama.cpp"}
    threads = (THREADS,)

    def targets(self) -> list[str]:
        return ["builtin:f32"]

    def run(self, plan: BenchPlan, progress: Progress) -> Iterator[BenchRow]:
        with threads_spin(), tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
            for target in plan.targets or self.targets():
                yield from rows(model_of(target, Path(folder)), plan, progress)

    def promises(self, rows: Sequence[BenchRow]) -> list[Promise]:
        return [
            Promise(
                text=f"{row.target}: against llama.cpp's speed",
                least=least,
                found=row.rates[OURS, THREADS] / row.rates[THEIRS, THREADS],
            )
            for row in rows
            for name, (tokens, least) in WORK.items()
            if row.target.endswith(name) and tokens / row.rates[THEIRS, THREADS] > SHORT
        ]


def rows(path: Path, plan: BenchPlan, progress: Progress) -> Iterator[BenchRow]:
    """Yield rows with the highest rates of all rounds, because other load on the machine can only
    lower a rate."""
    best: dict[tuple[str, str], float] = {}
    for i in range(plan.rounds):
        for engine in (OURS, THEIRS):
            progress(path.stem, f"round {i + 1} of {plan.rounds}, {engine}")
            for name, rate in turn(engine, path, plan.seed).items():
                best[name, engine] = max(rate, best.get((name, engine), 0.0))
    for name in WORK:
        rates = {(engine, THREADS): best[name, engine] for engine in (OURS, THEIRS)}
        yield BenchRow(target=f"{path.stem}, {name}", rates=rates)


def turn(engine: str, path: Path, seed: int) -> dict[str, float]:
    """Open the engine and return its rates. It runs each batch once before the measurement."""
    ids = integers(stream(seed, "bench.run"), PROMPT, SMALLEST_VOCABULARY).tolist()
    prompt = replace(Batch.of(ids), outputs=np.arange(PROMPT) == PROMPT - 1)
    steps = tuple(Batch.of([token], start=at) for at, token in enumerate(ids[:STEPS]))
    rates = {}
    with Runner(time_limit=LIMIT).open(
        engine, path, replace(DEFAULT, n_threads=THREADS)
    ) as session:
        for name, batches in zip(WORK, ((prompt,), steps), strict=True):
            request = Request(batches=batches)
            ask_run(engine, session, request)
            seconds = ask_run(engine, session, request).seconds
            rates[name] = sum(len(batch) for batch in batches) / seconds
    return rates


def ask_run(engine: str, session: Session, request: Request) -> Answered:
    outcome = session.ask("evaluate", request)
    if not isinstance(outcome, Answered):
        raise why_unmeasured(engine, "evaluate", outcome)
    return outcome
