"""Weights per second of each decoder: ours, ggml's `to_float` and gguf-py, with one thread and with
two."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import ClassVar

from lockstep.engine.choices import choices
from lockstep.engine.quants.base import Bytes, WeightFormat
from lockstep.engine.registry import import_members
from lockstep.harness.bench.base import (
    Bench,
    BenchPlan,
    BenchRow,
    Progress,
    Promise,
    geometric_mean,
    why_unmeasured,
)
from lockstep.harness.check.check import BadInput
from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.records import EXACT, Answered
from lockstep.harness.synth.draws import octets, stream

OURS, GGML, GGUF = "reference", "llama.cpp", "gguf-py"
ALONE = 1.0, 1.5, 1.8  # least ratios: of each type, in the geometric mean, of two threads to one


class QuantsBench(Bench, name="quants"):
    unit = "weights"
    engines: ClassVar[dict[str, str]] = {OURS: "ours", GGML: "ggml", GGUF: "gguf"}

    def targets(self) -> list[str]:
        import_members("lockstep.engine.quants")
        formats = sorted(WeightFormat.family.values(), key=lambda kind: kind.type_id)
        return [kind.name for kind in formats]

    def run(self, plan: BenchPlan, progress: Progress) -> Iterator[BenchRow]:
        unknown = sorted(set(plan.targets) - set(self.targets()))
        if unknown:
            known = choices(unknown[0], self.targets())
            raise BadInput(f"bench quants knows no {unknown[0]!r} {known}")
        with ExitStack() as stack:
            sessions = {
                name: stack.enter_context(Runner().open(name, None, EXACT)) for name in self.engines
            }
            for target in plan.targets or self.targets():
                yield BenchRow(target=target, rates=self.rates(target, plan, sessions, progress))

    def rates(
        self, target: str, plan: BenchPlan, sessions: dict[str, Session], progress: Progress
    ) -> dict[tuple[str, int], float]:
        """Return each engine's highest rate of all rounds, because other load on the machine can
        only lower a rate."""
        raw = blocks_of(WeightFormat.member(target), plan.size, plan.seed)
        best: dict[tuple[str, int], float] = {}
        turns = [(name, threads) for threads in self.threads for name in self.engines]
        for i in range(plan.rounds):
            progress(target, f"round {i + 1} of {plan.rounds}")
            for name, threads in list(turns):
                outcome = sessions[name].ask("time_dequantize", target, raw, plan.seconds, threads)
                if isinstance(outcome, Answered):
                    rate = weights_in(target, raw) / outcome.value
                    best[name, threads] = max(rate, best.get((name, threads), 0.0))
                elif name == OURS:
                    raise why_unmeasured(name, "time_dequantize", outcome)
                else:
                    turns.remove((name, threads))  # the engine has no decoder for this type
        return best

    def promises(self, rows: Sequence[BenchRow]) -> list[Promise]:
        one = ratios(rows, (OURS, 1), (GGML, 1))
        two = ratios(rows, (OURS, 2), (OURS, 1))
        if not one or not two:
            return []
        return [
            Promise(
                text="one thread against ggml's, the slowest type",
                least=ALONE[0],
                found=min(one.values()),
                below=below(one, ALONE[0]),
            ),
            Promise(
                text=f"one thread against ggml's, geometric mean of {len(one)} types",
                least=ALONE[1],
                found=geometric_mean(list(one.values())),
            ),
            Promise(
                text=f"two threads against one, geometric mean of {len(two)} types",
                least=ALONE[2],
                found=geometric_mean(list(two.values())),
                below=below(two, ALONE[2]),
            ),
        ]


def blocks_of(kind: type[WeightFormat], weights: int, seed: int) -> Bytes:
    """Return random blocks in which every float is ordinary, because products with NaN may be
    slow."""
    n = max(1, weights // kind.weights)
    blocks = octets(stream(seed, f"bench.{kind.name}"), n * kind.layout.itemsize)
    rows = blocks.view(kind.layout)
    for name in kind.layout.names or ():
        if kind.layout[name].kind == "f":
            rows[name] = 0.37
    return blocks


def weights_in(target: str, raw: Bytes) -> int:
    kind = WeightFormat.member(target)
    return kind.whole_blocks(raw) * kind.weights


def ratios(rows: Sequence[BenchRow], a: tuple[str, int], b: tuple[str, int]) -> dict[str, float]:
    found = {row.target: row.ratio(a, b) for row in rows}
    return {target: ratio for target, ratio in found.items() if ratio is not None}


def below(found: dict[str, float], least: float) -> tuple[str, ...]:
    return tuple(sorted((t for t in found if found[t] < least), key=lambda t: found[t]))
