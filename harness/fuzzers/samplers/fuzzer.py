"""Samplers: chains on difficult logits, until a stage differs from its definition."""

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.engine.gguf.split_files import open_model
from lockstep.engine.samplers.base import SamplerVocabulary
from lockstep.engine.samplers.parts.vocabulary import TokenizerWords
from lockstep.engine.samplers.parts.ways import Accident
from lockstep.engine.tokenizers.base import tokenizer_of
from lockstep.harness.check.check import BadInput
from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.context.suite import NoAnswer, no_answer
from lockstep.harness.fuzzers.base import Fuzzer, FuzzPlan, Progress
from lockstep.harness.fuzzers.numbers import CaseNumbers
from lockstep.harness.fuzzers.samplers.cases import (
    TARGETS,
    draw_anew,
    has_finite_best,
    make_question,
)
from lockstep.harness.fuzzers.samplers.question import question_text, read_question
from lockstep.harness.fuzzers.samplers.shrink import shrink_question
from lockstep.harness.known.samplers import describe_accident, entry_of_accident
from lockstep.harness.records import Answered, SampleAnswer, SampleRequest, Unanswerable, Verdict
from lockstep.harness.samplers.asking import ask_every_stage
from lockstep.harness.samplers.cases import INFILL, stage_for
from lockstep.harness.samplers.describe import describe_finding
from lockstep.harness.samplers.judgement import StageFinding, judge_answer
from lockstep.harness.synth.builtin import BUILTIN_VOCABULARIES
from lockstep.harness.synth.llama import write_llama

SECONDS = 20.0  # time limit of one question
PACE = 100  # cases between two lines of progress
FEW_TRIES = 60  # questions for a finding that costs a process each time
MAX_DEATHS = 5  # deaths of an engine before a target is given up
ROW = np.linspace(-2, 2, 5, dtype=np.float32)[None]


class SamplersFuzzer(Fuzzer, name="samplers"):
    """A fuzzer whose targets are samplers. Every chain of a target contains its sampler."""

    def targets(self) -> list[str]:
        return list(TARGETS)

    def check(self, plan: FuzzPlan) -> None:
        super().check(plan)
        if plan.given and len(plan.targets) != 1:
            raise BadInput("--question needs the sampler: give one --type")
        for text in plan.given:
            read_question(text)

    def run(self, plan: FuzzPlan, progress: Progress) -> Iterator[Verdict]:
        with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
            path = Path(folder) / "vocabulary.gguf"
            write_llama(BUILTIN_VOCABULARIES["llama"], path)
            for target in plan.targets or self.targets():
                yield from SamplerCampaign(
                    plan=plan, target=target, path=path, say=progress
                ).verdicts()


@dataclass(frozen=True, kw_only=True)
class SampleFault:
    """A fault in an answer: a wrong stage, or no answer."""

    status: str
    text: str
    finding: StageFinding | None = None

    @property
    def identity(self) -> tuple[str, ...]:
        """Return the identity of a fault, by which equal findings are counted together."""
        found = self.finding
        if found is None:
            return (self.status,)
        if found.accident is not None:
            return (found.accident.name,)
        return (found.sampler, found.difference.wrong.name)


@dataclass(kw_only=True)
class SamplerCampaign:
    """A campaign on one target. It reports a fault once, and counts repetitions."""

    plan: FuzzPlan
    target: str
    path: Path
    say: Progress
    numbers: CaseNumbers = field(init=False)
    seen: Counter[str] = field(default_factory=Counter, init=False)
    counts: Counter[str] = field(default_factory=Counter, init=False)
    deaths: Counter[str] = field(default_factory=Counter, init=False)

    def __post_init__(self) -> None:
        self.numbers = CaseNumbers(self.plan)

    @cached_property
    def words(self) -> SamplerVocabulary:
        return TokenizerWords(tokenizer_of(open_model(self.path).metadata))

    def verdicts(self) -> Iterator[Verdict]:
        plan = self.plan
        runner = Runner(time_limit=min(SECONDS, plan.time_limit), memory_limit=plan.memory_limit)
        with (
            runner.open(plan.oracle, self.path, plan.settings) as oracle,
            runner.open(plan.engine, self.path, plan.settings) as subject,
        ):
            try:
                samplers = find_samplers(subject)
            except NoAnswer as error:
                yield self.verdict(error.status, error.summary, error.detail)
                return
            if self.target not in samplers:
                status = "excused" if samplers else "not-compared"
                yield self.verdict(status, f"{plan.engine} does not have {self.target}", {})
                return
            for request in self.questions(samplers):
                for session in dict.fromkeys((subject, oracle)):
                    yield from self.judge(session, request, session is subject)
                if self.deaths[plan.engine] >= MAX_DEATHS:
                    break
            yield self.summary()

    def questions(self, samplers: frozenset[str]) -> Iterator[SampleRequest]:
        if self.plan.given:
            yield from (draw_anew(read_question(text), self.words) for text in self.plan.given)
            return
        for numbers in self.numbers:
            for number in numbers:
                yield make_question(self.plan.seed, number, self.target, samplers, self.words)
            if numbers.stop % PACE == 0:
                differ = sum(self.seen.values())
                self.say(self.target, self.numbers.pace(numbers.stop, "chains", differ))

    # --- one question -----------------------------------------------------------------------------

    def judge(
        self, session: Session, request: SampleRequest, is_subject: bool
    ) -> Iterator[Verdict]:
        if self.deaths[session.name] >= MAX_DEATHS:
            return
        fault = self.fault_of(session, request)
        self.counts["chains" if is_subject else "chains of the oracle"] += 1
        if fault is None or (fault.status == "not-compared" and not is_subject):
            return
        key = "/".join((session.name, *fault.identity))
        self.seen[key] += 1
        deadly = fault.finding is None
        self.deaths[session.name] += deadly
        if self.seen[key] > 1:
            return

        def shows(other: SampleRequest) -> bool:
            found = self.fault_of(session, draw_anew(other, self.words))
            return found is not None and found.identity == fault.identity

        tries = {"budget": FEW_TRIES} if deadly else {}
        small = draw_anew(shrink_question(request, shows, **tries), self.words)
        last = self.fault_of(session, small)
        if last is None or last.identity != fault.identity:
            small, last = request, fault
        yield self.verdict_for(session, small, last, "subject" if is_subject else "oracle")

    def fault_of(self, session: Session, request: SampleRequest) -> SampleFault | None:
        """Return the first fault in the answer; None if there is none. A fault that is not a known
        fault of llama.cpp is returned first."""

        def ask(part: SampleRequest) -> SampleAnswer:
            outcome = session.ask("sample", part)
            if not isinstance(outcome, Answered):
                raise no_answer(session.name, "sample", outcome)
            value: SampleAnswer = outcome.value
            return value

        try:
            answer = ask_every_stage(ask, request)
        except NoAnswer as error:
            return SampleFault(status=error.status, text=error.summary)
        if not has_finite_best(request):
            self.counts["undefined"] += 1
            return None
        found = judge_answer(request, answer, self.words)
        self.counts["lists"] += found.judged
        first = next(iter((*found.unexplained, *found.findings)), None)
        if first is None:
            return None
        text = f"{session.name}: {describe_finding(first, request)}"
        return SampleFault(status="diverged", text=text, finding=first)

    # --- verdicts ---------------------------------------------------------------------------------

    def verdict_for(
        self, session: Session, small: SampleRequest, fault: SampleFault, role: str
    ) -> Verdict:
        finding, status, text = fault.finding, fault.status, fault.text
        detail: dict[str, Any] = {
            "engine": session.name,
            "at_fault": role,
            "case": self.numbers.done,
            "stages": len(small.chain),
            "candidates": int(np.isfinite(small.logits).any(axis=0).sum()),
            "rows": len(small.logits),
            "question": question_text(small),
            "known": None,
        }
        if finding is not None:
            detail |= {
                "sampler": finding.sampler,
                "stage": finding.stage,
                "wrong": finding.difference.wrong.name,
                "token": finding.difference.token,
            }
            if finding.accident is not None:
                status, text = "excused", describe_known(session.name, finding.accident)
                detail["known"] = entry_of_accident(finding.accident)["id"]
        key = f"fuzz-samplers/{self.target}/" + "/".join((session.name, *fault.identity))
        return self.verdict(status, text, detail, key, small)

    def summary(self) -> Verdict:
        n, lists = self.counts["chains"], self.counts["lists"]
        text = f"{n:,} chains with {self.target}, {lists:,} lists judged"
        if self.counts["undefined"]:
            text += f"; {self.counts['undefined']:,} without a finite best were only asked"
        if self.seen:
            kinds = ", ".join(f"{count} in {key}" for key, count in self.seen.most_common())
            text += f"; differences: {kinds}"
        detail = {**self.counts, "next": self.numbers.done, "differences": dict(self.seen)}
        return self.verdict("agreed" if lists else "not-compared", text, detail)

    def verdict(
        self,
        status: Any,
        summary: str,
        detail: Mapping[str, Any],
        key: str = "",
        request: SampleRequest | None = None,
    ) -> Verdict:
        again = () if request is None else ("--question", question_text(request))
        return Verdict(
            suite="fuzz-samplers",
            case=self.target,
            status=status,
            summary=summary,
            detail=detail,
            key=key,
            repro=self.plan.command("samplers", self.target, *again) if again else "",
        )


def describe_known(engine: str, accident: Accident) -> str:
    return f"{engine}: as known for llama.cpp: {describe_accident(accident)}"


def find_samplers(session: Session) -> frozenset[str]:
    """Return the samplers that the engine answers for. Raises NoAnswer if it never samples."""
    found = set()
    for name in TARGETS:
        stages = INFILL if name == "infill" else [stage_for(name, np.random.default_rng(1), 5)]
        draws = np.full((1, len(stages)), 0.5)
        request = SampleRequest(chain=tuple(stages), logits=ROW, accepted=((),), draws=draws)
        outcome = session.ask("sample", request)
        if not isinstance(outcome, Unanswerable):
            found.add(name)
        elif outcome.declared:
            raise no_answer(session.name, "sample", outcome)
    return frozenset(found)
