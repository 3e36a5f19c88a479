"""The interface of suites, and their shared data: sessions, settings and the oracle's runs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.random import Philox

from lockstep.engine.batch import Batch, encoded_first
from lockstep.engine.errors import EngineError
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.gguf.split_files import open_model
from lockstep.engine.quants.base import F32
from lockstep.engine.registry import Registered
from lockstep.engine.tokenizers.base import Tokenizer, tokenizer_of
from lockstep.harness.asking.facts import ModelFacts
from lockstep.harness.asking.session import in_words
from lockstep.harness.asking.waits import option_for_less
from lockstep.harness.context.beside import asked_beside
from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.judging.factor_designs import FactorDesign
from lockstep.harness.judging.noise import MORE_RUNS, RUNS, NoiseFloor
from lockstep.harness.processes.engine_process import Closable
from lockstep.harness.records import (
    ENGINE,
    REFUSED,
    Answered,
    Busy,
    Crashed,
    EngineInfo,
    FileSummary,
    Malformed,
    Outcome,
    Rejected,
    Settings,
    Status,
    TimedOut,
    Unanswerable,
    Verdict,
)
from lockstep.harness.report.text import fault_of

NOT_OFFERED = "not_offered"  # key in `detail`: the engine says that it lacks this
BUSY = "busy"  # key in `detail`: the engine may have this, but is busy
LESS = "less"  # key in `detail` of a question that timed out: the option that asks for less
# NO_MEMORY: llama.cpp keeps nothing of a batch for the next, and tokens also see later tokens.
# FIRST_ROW: llama.cpp writes into the first row of a batch's logits, and aborts if there is none.
NO_MEMORY = ("dream", "llada", "llada-moe", "rnd1")
FIRST_ROW = ("chameleon",)
NOT_IN_ONE = (*NO_MEMORY, *FIRST_ROW)
STEPS_TRACED = 2  # tokens decoded after the prompt, so that traces include reads of the cache


class NoAnswer(Exception):
    """Raised if an engine did not answer, so that nothing can be compared."""

    def __init__(self, status: Status, summary: str, detail: dict[str, Any]) -> None:
        super().__init__(summary)
        self.status, self.summary, self.detail = status, summary, detail


class HonestRuns(Protocol):
    """Our own runs of the oracle's file (harness.graph.honest_runs)."""

    def begin(self, batches: Sequence[Batch], *, seed: int, runs: int) -> None:
        """Begin to compute the noise floor, because suites will need it soon."""

    def floor(self, batches: Sequence[Batch], *, seed: int, runs: int) -> NoiseFloor:
        """Return an honest run without errors, and the worst of `runs` perturbed runs."""

    def unlucky(self, batches: Sequence[Batch], *, seed: int, runs: int) -> Iterator[F32]:
        """Return `runs` perturbed runs, each with the shape (outputs, vocabulary)."""

    def logits(self, batches: Sequence[Batch]) -> tuple[F32, F32]:
        """Return logits of each output, (outputs, vocabulary): rounded as llama.cpp does, and in
        float64 without conversions."""

    def converted_runs(
        self, batches: Sequence[Batch], only: Sequence[int] | None = None
    ) -> Iterator[F32]:
        """Yield the runs of designs with another format for activations, or for keys and values.
        only: the designs with these numbers, in this order."""

    def rounded_run(
        self, batches: Sequence[Batch], design: FactorDesign, *, seed: int, runs: int
    ) -> NoiseFloor:
        """Return the run of an engine that rounds these factors, and the noise of `runs` perturbed
        runs."""

    def without(self, batches: Sequence[Batch], tensors: Sequence[str]) -> F32 | None:
        """Return logits, (outputs, vocabulary), computed with zeros for the products of the
        layers' matrices with these names, such as `attn_output`. Return None if there are no
        such matrices."""


@dataclass(kw_only=True)
class Context:
    """Context of a check, with one model, one preset, and two engines in their roles."""

    case: str  # the model's name in the report
    model: Path  # the file that the oracle reads
    subject_model: Path  # the file that the subject reads
    oracle: Session
    subject: Session
    llama_cpp: Session  # reads the oracle's file; ops are judged along its graph
    in_full: Session | None = None  # llama.cpp with an F32 cache, as the subject may have one
    subject_info: EngineInfo  # the subject's own statement: which sites it shows
    settings: Settings
    n_tokens: int
    n_steps: int
    prompt: bytes  # text before generation
    seed: int
    named: bool  # the user named these suites; False: all suites that apply run
    facts: ModelFacts  # facts about the oracle's file
    make_honest: Callable[["Context"], HonestRuns]
    lanes: int  # number of partial sums in the oracle's vector code
    runner: Runner = field(default_factory=Runner)  # opens further engines, with the same limits
    repro: Callable[[str], str]  # suite -> the command that reproduces the verdict
    progress: Callable[[str], None] = field(default=lambda _: None)
    # called with the subject's answers while the oracle computes: see harness.runs.foretold
    on_answer: Callable[[str, Sequence[Any], Outcome], None] = field(default=lambda *_: None)
    # by suite: the questions for models that are made from this one, or for a restarted engine
    on_made_models: "Mapping[str, Callable[[Context], Iterator[Verdict]]]" = field(
        default_factory=dict
    )
    opening: Callable[..., Any] | None = None  # opens both engines on made models; None: as usual
    embeddings: bool = False  # honest runs give embeddings instead of logits
    given: tuple[Batch, ...] = ()  # the only run that the subject holds; empty: runs are seeded
    noise_measured: tuple[Sequence[Batch], float] | None = None  # see `noise_on`
    # the engines' summaries of their files, kept because a large vocabulary takes seconds
    read: dict[Session, FileSummary] = field(default_factory=dict)
    # the designs that gave all of the subject's logits so far, where float32 does not; None: no
    # design is sought, because each made model shows only one part
    rounding: list[FactorDesign] | None = field(default_factory=list)
    begun: dict[str, Closable] = field(default_factory=dict)  # by suite: background work

    @cached_property
    def file(self) -> GgufFile:
        """Return the oracle's file."""
        return open_model(self.model)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Return our tokenizer for the oracle's file. Raises an EngineError if there is none."""
        return tokenizer_of(self.file.metadata)

    @cached_property
    def honest(self) -> HonestRuns:
        return self.make_honest(self)

    @cached_property
    def tokens(self) -> list[int]:
        """Return random ids from the whole vocabulary. A text would contain only common tokens."""
        n_vocab = self.facts.n_vocab
        if not n_vocab:
            raise NoAnswer("not-compared", "the file does not say how many tokens there are", {})
        raw = Philox(key=self.seed).random_raw(self.n_tokens + STEPS_TRACED)
        return [int(r >> np.uint64(33)) % n_vocab for r in raw]

    @cached_property
    def batches(self) -> tuple[Batch, ...]:
        """Return the usual run: a prompt, which an encoder reads first, then single tokens."""
        if self.given:
            return self.given
        prompt, rest = self.tokens[: self.n_tokens], self.tokens[self.n_tokens :]
        steps = [Batch.of([t], start=self.n_tokens + i) for i, t in enumerate(rest)]
        both = self.facts.decoder_start is not None
        return encoded_first((Batch.of(prompt), *steps), both)

    def begin_noise(self) -> None:
        """Start to measure the noise in the background, while engines are asked."""
        if "noise" not in self.__dict__:
            self.honest.begin(self.batches, seed=self.seed, runs=RUNS)

    @cached_property
    def noise(self) -> NoiseFloor:
        self.progress("measuring the noise of honest runs")
        return self.honest.floor(self.batches, seed=self.seed, runs=RUNS)

    def noise_on(self, batches: Sequence[Batch]) -> float:
        """Return the relative noise on these batches from more runs, measured before an engine is
        blamed. Rare events occur as often in one long run as in several short runs."""
        if self.noise_measured is None or self.noise_measured[0] is not batches:
            self.progress("measuring the noise of more honest runs, to judge a difference")
            many = sum(map(len, batches)) // max(1, sum(map(len, self.batches)))
            runs = max(RUNS, MORE_RUNS // max(1, many))
            more = self.honest.floor(batches, seed=self.seed + MORE_RUNS, runs=runs)
            self.noise_measured = (batches, max(more.relative, self.noise.relative))
        return self.noise_measured[1]

    def honest_runs(self, batches: Sequence[Batch]) -> tuple[F32, F32]:
        """Return logits of the oracle's file computed by our ops, (outputs, vocabulary) each: with
        llama.cpp's conversions of activations, and in float64 without conversions."""
        self.progress("computing the run with our own ops, to find which engine is wrong")
        return self.honest.logits(batches)

    def converted_runs(
        self, batches: Sequence[Batch], only: Sequence[int] | None = None
    ) -> Iterator[F32]:
        self.progress("computing the run in other honest designs, to judge a difference")
        return self.honest.converted_runs(batches, only=only)

    def asked_on_made_models(self, name: str) -> Iterator[Verdict]:
        """Yield the verdicts of this suite on probe models; none if the suite makes no models."""
        if name in self.on_made_models:
            yield from self.on_made_models[name](self)

    def with_subject(self, subject: Session, path: Path, info: EngineInfo) -> "Context":
        """Return this context with another subject. Facts about the oracle stay the same."""
        other = copy(self)
        other.rounding = []
        other.subject, other.subject_model, other.subject_info = subject, path, info
        return other

    def for_embeddings(self) -> "Context":
        """Return this context with honest runs of embeddings, and without begun work."""
        return replace(self, embeddings=True, begun={})

    def ask_both(self, question: str, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Return the answers of the oracle and the subject. If both refuse, neither is blamed.

        If the oracle reports that the model lacks something, this does not excuse another failure
        of the subject. An engine with embeddings may instead report that it has no logits.
        """
        first, second = self.outcomes(question, *args, **kwargs)
        if isinstance(second, Rejected) and (isinstance(first, Rejected) or lacks(first)):
            said = f"{getattr(first, 'message', '')}; {second.message}"
            raise NoAnswer("not-compared", f"both engines refuse: {said}", {})
        embeds = "embed" in (self.subject_info.levels or ())
        if lacks(first) and not (lacks(second) or (embeds and isinstance(second, Unanswerable))):
            self.answer(self.subject, question, second)
        expected = self.answer(self.oracle, question, first)
        return expected, self.answer(self.subject, question, second)

    def outcomes(self, question: str, *args: Any, **kwargs: Any) -> tuple[Outcome, Outcome]:
        """Return the outcomes of both engines, asked at once if they are separate processes."""
        oracle = partial(self.oracle.ask, question, *args, **kwargs)
        subject = partial(self.subject.ask, question, *args, **kwargs)
        if self.oracle.pid is None or self.oracle in (self.subject, self.subject.asks):
            return oracle(), subject()
        self.oracle.start()  # in this thread, because the oracle would end with another thread
        first, second = asked_beside(oracle, subject)
        self.on_answer(question, args, second)
        return first, second

    def ask(self, session: Session, question: str, *args: Any, **kwargs: Any) -> Any:
        """Return the answer to a question. Raises NoAnswer if the outcome is not an answer."""
        return self.answer(session, question, session.ask(question, *args, **kwargs))

    def answer(self, session: Session, question: str, outcome: Outcome) -> Any:
        """Return the value of an outcome, or raise the same error as `ask`."""
        if isinstance(outcome, Answered):
            return outcome.value
        if isinstance(outcome, Unanswerable) and outcome.declared:
            raise NoAnswer("not-applicable", outcome.message, {NOT_OFFERED: True})
        called = question.replace("evaluate", "embeddings", 1) if self.embeddings else ""
        error = no_answer(session.name, question, outcome, called)
        if isinstance(outcome, Rejected):
            raise self.refusal(session, question, error)
        lacking = session is self.subject or (self.facts.has_logits and not self.embeddings)
        if error.status == "not-applicable" and lacking:
            # The oracle was asked first, and our graph has logits. So the engine lacks something,
            # not the model.
            text = f"{session.name} cannot answer: {error.summary}"
            raise NoAnswer("not-compared", text, error.detail)
        raise error

    def refusal(self, session: Session, question: str, error: NoAnswer) -> NoAnswer:
        """Return the error, with blame for an engine that refuses what our own engine accepts."""
        wrong = "unknown"
        if self.takes(session, question):
            wrong = {self.oracle: "oracle", self.subject: "subject"}.get(session, session.name)
        why = f"our own engine accepts it: {fault_of(wrong)}"
        if wrong == "unknown":
            why = "it is unknown which engine is right"
        return NoAnswer(error.status, f"{error.summary}; {why}", error.detail | {"at_fault": wrong})

    def takes(self, session: Session, question: str) -> bool:
        """Return True if our own engine accepts the file, and did not itself refuse."""
        if session.name == "reference":
            return False
        if session is self.subject and self.subject_model != self.model:
            return False  # nobody read the subject's own file
        try:
            if question in ("tokenize", "detokenize"):
                _ = self.tokenizer
        except EngineError:
            return False
        return not self.facts.not_ours or question not in ("evaluate", "greedy")

    def verdict(
        self,
        suite: str,
        status: Status,
        summary: str,
        detail: dict[str, Any] | None = None,
        key: Sequence[str] = (),
    ) -> Verdict:
        return Verdict(
            suite=suite,
            case=self.case,
            status=status,
            summary=summary,
            detail=detail or {},
            key="/".join(key),
            repro="" if status == "agreed" else self.repro(suite),
        )

    def close(self) -> None:
        for begun in self.begun.values():
            begun.close()
        for name in ("file", "honest"):
            if name in self.__dict__ and hasattr(self.__dict__[name], "close"):
                self.__dict__[name].close()


def lacks(outcome: Outcome) -> bool:
    """Return True if the engine says that the model itself lacks something."""
    return isinstance(outcome, Unanswerable) and outcome.of_model


def no_answer(engine: str, question: str, outcome: Outcome, called: str = "") -> NoAnswer:
    """Return the NoAnswer for this outcome. `called` replaces the question's usual name."""
    asked, question = question, called or in_words(question)
    if isinstance(outcome, Crashed):
        log = {ENGINE: engine, "question": asked, **asdict(outcome), "log": list(outcome.log)}
        # after a failure the engine lives on
        how = f"{engine} {'failed' if outcome.said else 'crashed'}"
        return NoAnswer("crashed", f"{how} in {question}: {outcome.message}", log)
    if isinstance(outcome, TimedOut):
        less = option_for_less(asked, outcome.tokens)
        log = {ENGINE: engine, "log": list(outcome.log), LESS: less}
        # otherwise the question already says how long it is
        if outcome.tokens and " " not in asked:
            question += f" of {outcome.tokens} tokens"
        text = f"{engine} did not answer {question} within {outcome.seconds:g} s"
        text += f": {outcome.note}" if outcome.note else ""
        return NoAnswer("timed-out", text, log)
    if isinstance(outcome, Busy):
        text = f"{engine} did not answer {question}: {outcome.message}"
        return NoAnswer("not-compared", text, {ENGINE: engine, BUSY: True})
    if isinstance(outcome, Malformed):
        text = f"{engine} gave a malformed answer to {question}: {outcome.message}"
        return NoAnswer("malformed", text, {ENGINE: engine, "question": question})
    if isinstance(outcome, Unanswerable):
        if outcome.of_model:
            return NoAnswer("not-applicable", outcome.message, {})
        text = f"{engine} cannot answer: {outcome.message}"
        return NoAnswer("not-compared", text, {ENGINE: engine, "message": outcome.message})
    if isinstance(outcome, Rejected):
        text = f"{engine} refuses what the other engine accepts: {outcome.message}"
        detail = {ENGINE: engine, "question": question}
        return NoAnswer("diverged", text, detail | {"kind": REFUSED, "where": outcome.message})
    raise TypeError(f"{outcome!r} is an answer")


def line_that_says_why(message: str) -> str:
    """Return the line with the reason, which is the first line, or the last line of a traceback."""
    lines = message.splitlines() or [""]
    return lines[-1 if "Traceback (most recent call last)" in lines[0] else 0]


def patient(error: NoAnswer) -> NoAnswer:
    """Return the error. For a timeout, the message adds how to wait longer or ask for less."""
    if error.status != "timed-out":
        return error
    less = error.detail.get(LESS)
    more = f"; {less} N asks for fewer tokens" if less else ""
    text = f"{error.summary} (--timeout SECONDS allows more time{more})"
    return NoAnswer(error.status, text, error.detail)


class Suite(Registered):
    """Asks both engines the same questions and compares the answers. Suites run in the sequence of
    their `order`."""

    members: ClassVar[str] = "lockstep.harness.suites"
    order: ClassVar[int]
    # False: the suite is not reported as missing where it does not apply
    expected: ClassVar[bool] = True
    of_oracle_alone: ClassVar[bool] = False  # True: only the oracle is asked

    def inapplicable(self, facts: ModelFacts) -> str:
        """Return why this model has nothing to compare; "" if it has something to compare."""
        return ""

    def begin(self, context: Context) -> None:
        """Begin work that may run while other suites ask engines. `Context.begun` holds it."""

    def run(self, context: Context) -> Iterator[Verdict]:
        """Yield a verdict for each comparison, and for each comparison that is impossible."""
        raise NotImplementedError

    def finish(self, context: Context) -> Iterator[Verdict]:
        """Yield the verdicts that need much time, after all suites have run."""
        return iter(())
