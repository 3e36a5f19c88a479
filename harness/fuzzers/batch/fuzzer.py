"""Batches and caches: schedules of decode calls and cache operations, until two engines differ."""

import shlex
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lockstep.harness.adapters import has_sbatch, split_version
from lockstep.harness.check.check import BadInput
from lockstep.harness.context.runner import Runner
from lockstep.harness.fuzzers.base import Fuzzer, FuzzPlan, Progress
from lockstep.harness.fuzzers.batch.judge import Judge, ScheduleDifference
from lockstep.harness.fuzzers.batch.known import KnownSchedule, entry_for, known_schedules
from lockstep.harness.fuzzers.batch.machines import KINDS
from lockstep.harness.fuzzers.batch.sbatch_schedules import SPLITS, sbatch_schedule
from lockstep.harness.fuzzers.batch.schedule import ScheduleCase, schedule_from
from lockstep.harness.fuzzers.batch.schedules import schedule
from lockstep.harness.fuzzers.batch.shrink import shrink_case
from lockstep.harness.fuzzers.batch.situations import SITUATIONS, find_situations
from lockstep.harness.fuzzers.numbers import CaseNumbers
from lockstep.harness.records import Verdict
from lockstep.harness.synth.small import SMALL

SECONDS = 20.0  # time limit of one question
OF_SUBJECT = 16  # in one schedule of so many, the subject's relations are checked too
RELATIONS = ("neighbours", "splitting")
DEADLY = ("crashed", "timed-out")  # each of these costs a new process
COUNTED = {
    "schedules": "schedules",
    "steps": "steps",
    "ubatches": "ubatches",
    "slots": "looks at cells",
    "pos": "spans of positions",
    "order": "places in the order of outputs",
    "logits": "logits of both",
    "neighbours": "beside other neighbours",
    "splitting": "split anew",
}
ASKED_FOR = ["yarn"]  # kinds that a campaign without --type skips
UNANSWERED = ("rejected", "unanswerable")


def kinds_for(oracle: str, engine: str) -> list[str]:
    """Return the kinds of memory that a campaign with these two engines tests."""
    if of_sbatch(oracle, engine):
        return list(SPLITS)
    # versions with llama_sbatch lack lfm2, which is our model with a hybrid memory
    return [kind for kind in KINDS if kind != "hybrid" or not any_sbatch(oracle, engine)]


def any_sbatch(*engines: str) -> bool:
    return any(version and has_sbatch(version) for _, version in map(split_version, engines))


def of_sbatch(oracle: str, engine: str) -> bool:
    """Return True if the campaign tests how an older llama.cpp splits batches."""
    return any_sbatch(oracle, engine) and split_version(oracle)[0] != split_version(engine)[0]


class BatchFuzzer(Fuzzer, name="batch"):
    """A fuzzer whose targets are kinds of memory. Each has a small model."""

    def targets(self) -> list[str]:
        return list(KINDS)

    def check(self, plan: FuzzPlan) -> None:
        known = kinds_for(plan.oracle, plan.engine)
        known += [] if any_sbatch(plan.oracle, plan.engine) else ASKED_FOR
        unknown = [kind for kind in plan.targets if kind not in known]
        if unknown:
            raise BadInput(
                f"fuzz batch of {plan.engine} against {plan.oracle} has no target {unknown[0]!r} "
                f"(known: {', '.join(known)})"
            )
        if plan.given and len(plan.targets) != 1:
            raise BadInput("--schedule needs the kind of memory: give one --type")
        for text in plan.given:
            schedule_from(text)

    def run(self, plan: FuzzPlan, progress: Progress) -> Iterator[Verdict]:
        with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
            for kind in plan.targets or kinds_for(plan.oracle, plan.engine):
                path = Path(folder) / f"{kind}.gguf"
                SMALL["recurrent" if kind == "pooled" else kind](path)
                yield from ScheduleCampaign(
                    plan=plan, kind=kind, path=path, say=progress
                ).verdicts()


@dataclass(kw_only=True)
class ScheduleCampaign:
    """A campaign on one kind of memory. It reports a finding once, and counts repetitions."""

    plan: FuzzPlan
    kind: str
    path: Path
    say: Progress
    known: list[KnownSchedule] = field(default_factory=known_schedules)
    seen: Counter[str] = field(default_factory=Counter, init=False)
    reached: Counter[str] = field(default_factory=Counter, init=False)
    numbers: CaseNumbers = field(init=False)

    def __post_init__(self) -> None:
        self.numbers = CaseNumbers(self.plan)

    @property
    def sbatch(self) -> bool:
        return of_sbatch(self.plan.oracle, self.plan.engine)

    def verdicts(self) -> Iterator[Verdict]:
        plan = self.plan
        runner = Runner(time_limit=min(SECONDS, plan.time_limit), memory_limit=plan.memory_limit)
        with (
            runner.open(plan.oracle, self.path, plan.settings) as oracle,
            runner.open(plan.engine, self.path, plan.settings) as subject,
        ):
            judge = Judge(oracle, subject, relations=not self.sbatch)
            for case in self.cases():
                judge.relations_of_subject = self.numbers.done % OF_SUBJECT == 0 or bool(plan.given)
                difference = judge(case)
                if not self.sbatch:
                    self.reached.update(find_situations(case, self.kind))
                if difference is None:
                    continue
                verdict = self.finding(judge, case, difference)
                if verdict is not None:
                    yield verdict
                if difference.symptom in UNANSWERED:
                    return
            yield self.summary(judge.counts)

    def cases(self) -> Iterator[ScheduleCase]:
        if self.plan.given:
            yield from map(schedule_from, self.plan.given)
            return
        for numbers in self.numbers:
            yield from map(self.case_at, numbers)
            if numbers.stop % 50 == 0:
                differ = sum(self.seen.values())
                self.say(self.kind, self.numbers.pace(numbers.stop, "schedules", differ))

    def case_at(self, number: int) -> ScheduleCase:
        plan = self.plan
        if self.sbatch:
            return sbatch_schedule(plan.seed, number, self.kind)
        made = schedule(plan.seed, number, self.kind)
        one_stream = any_sbatch(plan.oracle, plan.engine)
        return replace(made, unified=True) if one_stream else made

    def finding(
        self, judge: Judge, case: ScheduleCase, first: ScheduleDifference
    ) -> Verdict | None:
        """Return the verdict on a difference, with the schedule minimised; None if the finding was
        reported before."""
        if first.symptom in UNANSWERED:
            text = f"{first.who}: {first.text}"
            return self.verdict("not-compared", text, {"schedule": case.plan()}, case=case)

        unlisted = self.entry(first, case) is None

        def wrong(other: ScheduleCase) -> bool:
            found = judge(other)
            if found is None or (found.symptom, found.name) != (first.symptom, first.name):
                return False
            return not unlisted or self.entry(found, other) is None

        before, relations = judge.counts.copy(), judge.relations
        # relations cost most, so they are checked only if the symptom needs them
        judge.relations = first.symptom in RELATIONS
        small = shrink_case(case, self.kind, wrong, tries=40 if first.symptom in DEADLY else 500)
        last = judge(small) or first
        judge.counts, judge.relations = before, relations  # shrinking does not count as comparing
        known = self.entry(last, small)
        key = f"{last.symptom}/{small.names if known is None else known.id}"
        self.seen[key] += 1
        return self.verdict_for(small, last, known, key) if self.seen[key] == 1 else None

    def entry(self, found: ScheduleDifference, case: ScheduleCase) -> KnownSchedule | None:
        return entry_for(self.known, (self.plan.oracle, self.plan.engine), self.kind, found, case)

    def verdict_for(
        self, small: ScheduleCase, last: ScheduleDifference, known: KnownSchedule | None, key: str
    ) -> Verdict:
        status = last.symptom if last.symptom in (*DEADLY, "malformed") else "diverged"
        who = f"{last.who}: " if last.who else ""
        text = f"{who}after {small.names}, {last.text}"
        detail = {
            "schedule": small.plan(),
            "case": self.numbers.done,
            "symptom": last.symptom,
            "step": last.step,
            "expected": last.expected,
            "actual": last.actual,
            "known": None if known is None else known.id,
        }
        if known is not None:
            status, text = "excused", f"{text} (known: {known.id})"
        return self.verdict(status, text, detail, key=f"fuzz-batch/{self.kind}/{key}", case=small)

    def summary(self, counts: Counter[str]) -> Verdict:
        said = [f"{counts[what]:,} {words}" for what, words in COUNTED.items() if counts[what]]
        text = ", ".join(said) or "no schedules"
        differ = sum(self.seen.values())
        if differ:
            kinds = ", ".join(f"{n} in {key}" for key, n in self.seen.most_common())
            text += f"; {differ} of them differ: {kinds}"
        if self.reached:
            text += "; reached " + ", ".join(f"{s} {self.reached[s]:,}" for s in SITUATIONS)
        detail = {
            **counts,
            "reached": dict(self.reached),
            "next": self.numbers.done,
            "differences": dict(self.seen),
        }
        return self.verdict("agreed" if counts["steps"] else "not-compared", text, detail)

    def verdict(
        self,
        status: Any,
        summary: str,
        detail: Mapping[str, Any],
        key: str = "",
        case: ScheduleCase | None = None,
    ) -> Verdict:
        words = [] if case is None else ["--schedule", case.text()]
        plan = self.plan
        command = ["lockstep", "fuzz", "batch", "--type", self.kind, "--engine", plan.engine]
        command += [] if plan.oracle == "llama.cpp" else ["--oracle", plan.oracle]
        return Verdict(
            suite="fuzz-batch",
            case=self.kind,
            status=status,
            summary=summary,
            detail=detail,
            key=key,
            repro=shlex.join([*command, *words]) if words else "",
        )
