"""Samplers: every stage of any chain must follow its definition.

Rows of logits are seeded, so no weights are read. Infill, grammars and the breakers of dry use the
model's vocabulary. Engines need not reproduce llama.cpp's known faults (harness/known).
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from lockstep.engine.errors import EngineError
from lockstep.engine.samplers.base import SamplerVocabulary
from lockstep.engine.samplers.parts.vocabulary import TokenizerWords
from lockstep.engine.samplers.parts.ways import Accident
from lockstep.harness.adapters.parts.sampled_lists import split_lists
from lockstep.harness.context.runner import Session
from lockstep.harness.context.suite import BUSY, Context, NoAnswer, Suite
from lockstep.harness.known.samplers import describe_accident
from lockstep.harness.records import (
    PART,
    Answered,
    Rejected,
    SampleAnswer,
    SampleRequest,
    Status,
    Unanswerable,
    Verdict,
)
from lockstep.harness.samplers.asking import ask_every_stage
from lockstep.harness.samplers.cases import (
    CHOOSING,
    CUTTING,
    INFILL,
    CaseLimits,
    SampleCase,
    grammar_cases,
    make_case,
    stage_for,
)
from lockstep.harness.samplers.describe import describe_finding
from lockstep.harness.samplers.grammars import READING, bad_grammars, is_open
from lockstep.harness.samplers.judgement import Judgement, StageFinding, judge_answer
from lockstep.harness.suites.parts import served_samplers

NAME, LEVEL = "samplers", "sample"
CASES, ROWS = 120, 10
WORD_CASES, WORD_ROWS = 12, 4  # chains and rows that use the model's vocabulary
MAX_WORDS = 70_000  # tokens of a vocabulary: each row of logits is as long
PLAIN = (17, 100, 129, 300)  # sizes of the vocabularies with which each sampler is asked alone
FIRST_QUESTIONS = 12  # questions for each sampler, until one is answered
SHOWN = 8  # candidates of a list that the report shows


class Samplers(Suite, name=NAME):
    order = 54
    expected = False  # False: most engines offer no samplers

    def run(self, context: Context) -> Iterator[Verdict]:
        levels = context.subject_info.levels or ()
        if not context.named and LEVEL not in levels:
            return
        if served_samplers.LEVEL in levels and LEVEL not in levels:
            yield from served_samplers.compare_served(context, NAME)
            return
        run = SamplerRun(context=context)
        yield from run.find_samplers()
        for case in run.cases() if run.names else ():
            context.progress(f"chain {case.seed}: {', '.join(case.samplers)}")
            yield from run.compare(case)
        if "grammar" in run.names:
            yield from run.find_open_grammars()
        yield from run.report()


@dataclass(kw_only=True)
class SamplerRun:
    """A run of the sampler suite. It asks both engines, judges the answers, and reports each
    mistake of a sampler once."""

    context: Context
    names: set[str] = field(default_factory=set)  # samplers that the subject has
    # number of the subject's lists, by sampler
    judged: Counter[str] = field(default_factory=Counter)
    wrong: dict[tuple[str, str, str], list["Wronged"]] = field(default_factory=dict)
    accidents: Counter[tuple[str, Accident]] = field(default_factory=Counter)
    undefined: int = 0
    # number of chains that were not compared, by the subject's reason
    not_taken: Counter[str] = field(default_factory=Counter)
    unanswered: set[str] = field(default_factory=set)  # name of the oracle if it gave no answer

    @cached_property
    def words(self) -> SamplerVocabulary | None:
        try:
            tokenizer = self.context.tokenizer
        except EngineError:
            return None
        return TokenizerWords(tokenizer) if len(tokenizer.pieces) <= MAX_WORDS else None

    def find_samplers(self) -> Iterator[Verdict]:
        """Ask for each sampler alone. Yield a verdict that names the samplers that the engine
        lacks."""
        asked = dict[str, None]()
        for name, request in self.first_questions():
            asked[name] = None
            if name in self.names:
                continue
            outcome = self.context.subject.ask(LEVEL, request)
            if not isinstance(outcome, Unanswerable):
                self.names.add(name)
            elif outcome.declared:
                self.context.answer(self.context.subject, LEVEL, outcome)
        if self.words is None:
            text = "infill, grammars, breakers of dry: the model has no vocabulary that we read"
            yield self.context.verdict(NAME, "not-applicable", text, {PART: "infill"})
        if lacking := [name for name in asked if name not in self.names]:
            text = f"{self.context.subject.name} does not have: {', '.join(lacking)}"
            status: Status = "excused" if self.names else "not-compared"
            yield self.context.verdict(NAME, status, text, {PART: "not there"})

    def first_questions(self) -> Iterator[tuple[str, SampleRequest]]:
        """Yield several questions for each sampler, because an engine may accept only some of its
        parameters."""
        limits = CaseLimits(sizes=PLAIN, kinds=("random",))
        for name in (*CUTTING, *CHOOSING):
            for i in range(FIRST_QUESTIONS):
                stages = [stage_for(name, np.random.default_rng(i), max(PLAIN))]
                yield name, make_case(i, 1, limits, stages).request
        if self.words is not None:
            limits, n = CaseLimits(words=self.words, kinds=("random",)), len(self.words.pieces)
            yield "infill", make_case(0, 1, limits, INFILL).request
            for i, name in enumerate(READING):
                stages = [stage_for(name, np.random.default_rng(i), n)]
                yield name, make_case(i, 1, limits, stages).request

    def cases(self) -> Iterator[SampleCase]:
        """Yield chains of the engine's samplers, some of them with the model's vocabulary."""
        has = frozenset(self.names)
        seed = self.context.seed * (CASES + WORD_CASES)
        for i in range(CASES):
            yield make_case(seed + i, ROWS, CaseLimits(samplers=has))
        if self.words is not None:
            limits = CaseLimits(samplers=has, words=self.words, kinds=("random", "peaked", "wide"))
            for i in range(CASES, CASES + WORD_CASES):
                yield make_case(seed + i, WORD_ROWS, limits)
            yield from grammar_cases(seed, limits)

    def find_open_grammars(self) -> Iterator[Verdict]:
        """Ask for invalid grammars. An engine that forbids nothing for such a grammar is wrong."""
        assert self.words is not None
        subject, mistakes = self.context.subject, []
        for mistake, request in bad_grammars(len(self.words.pieces)).items():
            outcome = subject.ask(LEVEL, request)
            if isinstance(outcome, Answered) and is_open(outcome.value):
                mistakes.append(mistake)
            elif not isinstance(outcome, Answered | Rejected | Unanswerable):
                try:
                    self.context.answer(subject, LEVEL, outcome)
                except NoAnswer as error:
                    text = f"{error.summary}: a bad grammar ({mistake})"
                    yield self.context.verdict(NAME, error.status, text, error.detail)
        if mistakes:
            self.judged.pop("grammar", None)
            text = f"{subject.name} forbids nothing for bad grammars: {', '.join(mistakes)}"
            detail = {PART: "grammar", "mistakes": mistakes, "at_fault": "subject"}
            yield self.context.verdict(NAME, "diverged", text, detail, (NAME, "bad grammar"))

    def compare(self, case: SampleCase) -> Iterator[Verdict]:
        for session in dict.fromkeys((self.context.oracle, self.context.subject)):
            if session.name in self.unanswered:
                continue
            try:
                ask = partial(self.context.ask, session, LEVEL)
                answer = ask_every_stage(ask, case.request)
            except NoAnswer as error:
                yield from self.tell_no_answer(session, case, error)
                continue
            self.judge(session, case, answer)

    def tell_no_answer(
        self, session: Session, case: SampleCase, error: NoAnswer
    ) -> Iterator[Verdict]:
        if session is self.context.oracle and error.status == "not-compared":
            # the definitions judge the subject without the oracle
            self.unanswered.add(session.name)
        elif error.status == "not-compared" and BUSY not in error.detail:
            self.not_taken[error.summary] += 1
            return
        chain = ", ".join(case.samplers)
        text = f"{error.summary}: chain {case.seed} ({chain})"
        detail = {**error.detail, "chain": list(case.request.chain), "seed": case.seed}
        yield self.context.verdict(NAME, error.status, text, detail, (NAME, error.status))

    def judge(self, session: Session, case: SampleCase, answer: SampleAnswer) -> None:
        found: Judgement = judge_answer(case.request, answer, self.words)
        if session is self.context.subject:
            self.undefined += found.undefined
            for name in case.samplers:
                self.judged[name] += len(case.kinds)
        for each in found.findings:
            if each.accident is not None:
                self.accidents[session.name, each.accident] += 1
            else:
                wronged = Wronged(case=case, finding=each, answer=answer)
                key = (session.name, each.sampler, each.difference.wrong.name)
                self.wrong.setdefault(key, []).append(wronged)

    def report(self) -> Iterator[Verdict]:
        verdict, subject = self.context.verdict, self.context.subject.name
        for (engine, sampler, how), cases in sorted(self.wrong.items()):
            worst = min(cases, key=lambda each: each.size)
            role = "subject" if engine == subject else "oracle"
            text = f"{engine}: {describe_finding(worst.finding, worst.case.request)}"
            text += f"; {len(cases)} lists are wrong in this way" if len(cases) > 1 else ""
            detail = {**worst.detail(), "engine": engine, "at_fault": role, PART: sampler}
            yield verdict(NAME, "diverged", text, detail, (NAME, sampler, how))
        for (engine, accident), n in sorted(self.accidents.items(), key=lambda x: x[0][1].name):
            text = f"{engine}: {n} lists as known for llama.cpp: {describe_accident(accident)}"
            yield verdict(NAME, "excused", text, {"known": accident.name, PART: accident.name})
        for name in sorted({*self.judged} - {sampler for _, sampler, _ in self.wrong}):
            text = f"{name}: {self.judged[name]:,} lists match its definition"
            yield verdict(NAME, "agreed", text, {PART: name})
        if self.not_taken:
            why = "; ".join(f"{n} times: {text}" for text, n in self.not_taken.most_common())
            text = f"{self.not_taken.total()} chains are not compared: {why}"
            detail = {PART: "not taken", "chains": dict(self.not_taken)}
            yield verdict(NAME, "excused" if self.judged else "not-compared", text, detail)
        if self.undefined:
            text = f"{self.undefined} lists are outside every definition (nothing finite)"
            yield verdict(NAME, "excused", text, {PART: "undefined"})


@dataclass(frozen=True, kw_only=True)
class Wronged:
    """A finding, with the question and the answer that prove it."""

    case: SampleCase
    finding: StageFinding
    answer: SampleAnswer

    @property
    def size(self) -> tuple[int, int, int]:
        """Return the size of a finding, which consists of its candidates, stages and row. Only the
        smallest finding is reported."""
        request = self.case.request
        return request.logits.shape[1], len(request.chain), self.finding.row

    def detail(self) -> dict[str, Any]:
        request, finding = self.case.request, self.finding
        lists = split_lists(self.answer)[finding.row]
        before = request.logits[finding.row] if not finding.stage else lists[finding.stage - 1]
        return {
            "sampler": finding.sampler,
            "stage": finding.stage,
            "chain": list(map(plain_stage, request.chain)),
            "case": self.case.seed,
            "row": finding.row,
            "kind": self.case.kinds[finding.row],
            "parameters": plain_stage(request.chain[finding.stage]),
            "wrong": finding.difference.wrong.name,
            "token": finding.difference.token,
            "expected": finding.difference.expected,
            "actual": finding.difference.actual,
            "n_before": len(before) if not finding.stage else len(before.ids),
            "ids": lists[finding.stage].ids[:SHOWN].tolist(),
            "accepted": accepted_before(request, finding.row)[-SHOWN:],
        }


def accepted_before(request: SampleRequest, row: int) -> list[int]:
    return [token for tokens in request.accepted[: row + 1] for token in tokens]


def plain_stage(stage: Any) -> dict[str, Any]:
    return {name: repr(v) if isinstance(v, tuple | bytes) else v for name, v in stage.items()}
