"""Questions to every engine, with their rules for equal answers: equal bits, equal tokens, or equal
within noise."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.asking.session import LocalSession, Session
from lockstep.harness.diagnosis.compared import Compared
from lockstep.harness.judging.candidates import Listed, off_from, squares
from lockstep.harness.judging.compare import bits, largest
from lockstep.harness.judging.no_characters import is_utf8, read_alike
from lockstep.harness.judging.tolerances import whole_run
from lockstep.harness.records import Answered, FileSummary, Outcome, Request
from lockstep.harness.suites.metadata import readable, same_key
from lockstep.harness.suites.parts.no_text import is_written
from lockstep.harness.suites.parts.text_judged import fits, why_not_compared
from lockstep.harness.suites.parts.text_readings import Pieces, Reading, readings

RUN = ("ops", "make_ops", "make_model", "loaded", "evaluate")
IDS = ("tokenize", "tokenizer")
TEXTS = ("detokenize", "tokenizer")


@dataclass(frozen=True, kw_only=True, eq=False)
class MistakeQuestion:
    """A question. Our engines in this process answer it in `of`, which returns None for no answer.

    words: a name that is unique within a model. aspect: the part of an engine that the question
    tests; a mistake affects only questions of its aspect. methods: the methods on which the answer
    depends; an engine that inherits all of them from the reference answers like the right engine.
    """

    words: str
    unit: ClassVar[str]
    aspect: ClassVar[str]
    methods: ClassVar[Sequence[str]]

    def ask(self, session: Session) -> Outcome:
        raise NotImplementedError

    def of(self, session: LocalSession) -> Any:
        outcome = self.ask(session)
        return outcome.value if isinstance(outcome, Answered) else None

    def compare(self, said: Any, answer: Any, session: LocalSession, noise: float) -> Compared:
        """Compare two answers. `said` is the subject's answer, and `answer` is the answer of our
        engine in `session`."""
        raise NotImplementedError

    def repeats(self, said: Any, again: Any, noise: float) -> bool:
        """Return True if the subject gave the same answer twice."""
        return bool(said == again)

    def is_as_right(self, cls: type[Any]) -> bool:
        """Return True if this engine's answer cannot differ from the right engine's."""
        return all(getattr(cls, name) is getattr(Reference, name) for name in self.methods)


# --- contents of files --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Header(MistakeQuestion):
    words: str = "the metadata of the file"
    utf8_only: bool = False  # True: the subject accepts only UTF-8, so other texts are left out
    unit = "entries"
    aspect = "metadata"
    methods = ("metadata", "file", "open_file")

    def ask(self, session: Session) -> Outcome:
        return session.ask("metadata")

    def compare(
        self, said: FileSummary, answer: FileSummary, session: LocalSession, noise: float
    ) -> Compared:
        """Compare two summaries. Types or tensors that the subject does not show are not
        compared."""
        if self.utf8_only:
            answer, _ = readable(answer, said)
        own, other = ({t.name: t for t in found.tensors} for found in (said, answer))
        keys = [same_key(k, answer, said) for k in sorted(answer.metadata)]
        if "tensors" in said.unknown:
            return Compared.exactly(keys)
        return Compared.exactly([*keys, *(own.get(name) == other[name] for name in other)])


@dataclass(frozen=True, kw_only=True, eq=False)
class Ids(MistakeQuestion):
    texts: tuple[bytes, ...]
    flags: tuple[tuple[str, bool], ...]
    unit = "texts"
    aspect = "tokens"
    methods = IDS

    def ask(self, session: Session) -> Outcome:
        return session.ask("tokenize", list(self.texts), **dict(self.flags))

    def compare(
        self, said: list[Any], answer: list[Any], session: LocalSession, noise: float
    ) -> Compared:
        return Compared.exactly(read_alike(self.texts, said, answer))


@dataclass(frozen=True, kw_only=True, eq=False)
class Written(Ids):
    texts: tuple[bytes, ...] = ()
    rows: tuple[tuple[int, ...], ...]
    utf8_only: bool = False  # True: the subject accepts only UTF-8, so other texts are left out
    unit = "texts"
    methods = TEXTS

    def ask(self, session: Session) -> Outcome:
        return session.ask("detokenize", [list(row) for row in self.rows], **dict(self.flags))

    def compare(
        self, said: list[Any], answer: list[Any], session: LocalSession, noise: float
    ) -> Compared:
        rows = zip(said, answer, strict=True)
        return Compared.exactly(a == b or (self.utf8_only and not is_utf8(b)) for a, b in rows)


@dataclass(frozen=True, kw_only=True, eq=False)
class Decoded(MistakeQuestion):
    type: str
    raw: NDArray[np.uint8]
    unit = "weights"
    aspect = "runs"
    methods = ("dequantize",)

    def ask(self, session: Session) -> Outcome:
        return session.ask("dequantize", self.type, self.raw)

    def compare(self, said: Any, answer: Any, session: LocalSession, noise: float) -> Compared:
        return Compared.exactly((bits(said) == bits(answer)).tolist())

    def repeats(self, said: Any, again: Any, noise: float) -> bool:
        return np.array_equal(bits(said), bits(again))


# --- logits -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class RunQuestion(MistakeQuestion):
    batches: tuple[Batch, ...]
    unit = "rows of logits"
    aspect = "runs"
    methods: ClassVar[Sequence[str]] = RUN

    def ask(self, session: Session) -> Outcome:
        return session.ask("evaluate", Request(batches=self.batches))

    def rows(self, answer: Any) -> NDArray[np.float32]:
        return np.concatenate(answer.logits)

    def compare(self, said: Any, answer: Any, session: LocalSession, noise: float) -> Compared:
        own, other = self.rows(said), self.rows(answer)
        if own.shape != other.shape:
            return Compared.exactly([False] * len(own))
        return within(own, other, float(whole_run(noise, largest(other)).allowed))

    def repeats(self, said: Any, again: Any, noise: float) -> bool:
        first, second = self.rows(said), self.rows(again)
        allowed = float(whole_run(noise, largest(first)).allowed)
        return first.shape == second.shape and bool(within(first, second, allowed).same.all())


@dataclass(frozen=True, kw_only=True, eq=False)
class Embedded(RunQuestion):
    unit = "rows of embeddings"
    methods = (*RUN, "embed")

    def ask(self, session: Session) -> Outcome:
        return session.ask("embed", self.batches)

    def rows(self, answer: Any) -> NDArray[np.float32]:
        return np.concatenate(answer)


def within(said: NDArray[Any], answer: NDArray[Any], allowed: float) -> Compared:
    """Compare row by row. A row is the same if no value differs by more than `allowed`. NaN and
    infinity are equal only to themselves."""
    with np.errstate(all="ignore"):
        off = said.astype(np.float64) - answer
        equal = (said == answer) | (np.isnan(said) & np.isnan(answer))
        off = np.where(equal, 0.0, off)
        close: NDArray[np.bool_] = np.less_equal(np.abs(off), allowed)  # False for NaN
    squares = np.where(np.isfinite(off), off**2, np.inf)
    return Compared(same=np.all(close, axis=1), apart=squares.sum(axis=1))


@dataclass(frozen=True, kw_only=True, eq=False)
class Likeliest(MistakeQuestion):
    """A question for a list of candidates after a prefix, which is given as ids or as text."""

    prefix: tuple[int, ...] | bytes
    k: int
    unit = "lists"
    aspect = "runs"
    methods = (*RUN, *IDS)

    def ask(self, session: Session) -> Outcome:
        given = self.prefix if isinstance(self.prefix, bytes) else list(self.prefix)
        return session.ask("logprobs", [given], self.k)

    def of(self, session: LocalSession) -> Any:
        ids = self.prefix
        if isinstance(ids, bytes):
            ids = tuple(*value_of(session.ask("tokenize", [ids]), [[]]))
        if not ids:
            return None
        return value_of(session.ask("evaluate", Request(batches=(Batch.for_next(ids),))))

    def compare(self, said: Listed, answer: Any, session: LocalSession, noise: float) -> Compared:
        """Compare two answers. In `said` tokens are resolved, as in harness.judging.candidates."""
        (row,) = answer.logits[0]
        if not (np.isfinite(row) | np.isneginf(row)).all():
            return Compared.exactly([False])
        off = off_from(said, row, float(whole_run(noise, largest(row)).allowed))
        # missing candidates and another order have no distance
        apart = squares(said, row) if off is None or off.kind == "value" else inf
        return Compared(same=np.array([off is None]), apart=np.array([apart]))


def value_of(outcome: Outcome, default: Any = None) -> Any:
    return outcome.value if isinstance(outcome, Answered) else default


# --- text ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Greedy(MistakeQuestion):
    ids: tuple[int, ...]
    n: int
    decoder_start: int | None = None
    unit = "tokens"
    aspect = "runs"
    methods = (*RUN, "greedy")

    def ask(self, session: Session) -> Outcome:
        return session.ask("greedy", list(self.ids), self.n)

    def of(self, session: LocalSession) -> Any:
        """Return the tokens and the logits of each choice, because a choice may be a tie. Return no
        logits if the engine has its own way to choose."""
        if session.cls.greedy is not Reference.greedy or self.decoder_start is not None:
            ids = value_of(self.ask(session))
            return None if ids is None else (ids, None)
        return choose_tokens(session, self.ids, self.n)

    def compare(
        self, said: list[int], answer: Any, session: LocalSession, noise: float
    ) -> Compared:
        """Compare up to the first tie within the noise, because texts may differ after it."""
        ids, rows = answer
        equal = [a == b for a, b in zip(said, ids, strict=True)]
        first = equal.index(False) if False in equal else len(equal)
        if rows and first < len(equal) and is_tie(rows[first], ids[first], said[first], noise):
            return Compared.exactly(equal[:first], len(equal) - first)
        return Compared.exactly(i < first for i in range(len(equal)))

    def shorten(self, n: int) -> "Greedy":
        return replace(self, words=f"the first {n} of {self.words}", n=n)

    def beginning(self, said: list[int], n: int) -> list[int]:
        return said[:n]


def choose_tokens(
    session: LocalSession, prompt: Sequence[int], n: int
) -> tuple[list[int], list[NDArray[np.float32]]] | None:
    """Return n greedy tokens with their logits. Return None if the engine fails, so that the
    mistake cannot be tried."""

    def run(engine: Any) -> tuple[list[int], list[NDArray[np.float32]]]:
        every = list(engine.loaded.choices(prompt, n))
        return [token for token, _ in every], [row for _, row in every]

    found: tuple[list[int], list[NDArray[np.float32]]] | None = value_of(session.attempt(run))
    return found


def is_tie(row: NDArray[np.float32], own: int, other: int, noise: float) -> bool:
    """Return True if the two logits are close but not equal. For equal logits an engine may choose
    either token."""
    if not np.isfinite(row).all():
        return False
    allowed = 2 * float(whole_run(noise, largest(row)).allowed)
    return bool(0 < row[own] - row[other] <= allowed)


@dataclass(frozen=True, kw_only=True, eq=False)
class InTurn(MistakeQuestion):
    """A question for the token after each of several prompts, asked one after the other. The first
    prompt has one token and is not compared, because it only clears data of earlier questions."""

    prompts: tuple[tuple[int, ...], ...]
    unit = "tokens"
    aspect = "runs"
    methods = (*RUN, "greedy")

    def ask(self, session: Session) -> Outcome:
        started, said = perf_counter(), list[int]()
        for ids in self.prompts:
            outcome = session.ask("greedy", list(ids), 1)
            if not isinstance(outcome, Answered):
                return outcome
            said += outcome.value
        return Answered(value=said, seconds=perf_counter() - started)

    def of(self, session: LocalSession) -> Any:
        """Return the answers of `Greedy.of` to each prompt."""
        found = [Greedy(words="", ids=ids, n=1).of(session) for ids in self.prompts]
        return None if any(answer is None for answer in found) else found

    def compare(
        self, said: list[int], answer: Any, session: LocalSession, noise: float
    ) -> Compared:
        """Compare the choices. A tie within the noise counts as equal, because no text continues
        after it."""
        rows = zip(said[1:], answer[1:], strict=True)
        ties = [
            token != ids[0] and bool(logits and is_tie(logits[0], ids[0], token, noise))
            for token, (ids, logits) in rows
        ]
        pairs = zip(said[1:], answer[1:], ties, strict=True)
        same = [tie or token == ids[0] for token, (ids, _), tie in pairs]
        return Compared.exactly(same, ties=sum(ties))


@dataclass(frozen=True, kw_only=True, eq=False)
class Continued(MistakeQuestion):
    """A question for the text after a prompt, which each engine tokenizes itself."""

    prompt: bytes
    n: int
    pieces: Pieces
    unit = "tokens"
    aspect = "runs"
    methods = (*RUN, "greedy", "tokenize", "detokenize", "tokenizer")

    def ask(self, session: Session) -> Outcome:
        return session.ask("generate", self.prompt, self.n)

    def of(self, session: LocalSession) -> Any:
        """Return the ids and the logits of each choice. Also return the text if the engine decodes
        texts differently from the right engine."""
        ids = value_of(session.ask("tokenize", [self.prompt]), [[]])[0]
        free = Greedy(words="", ids=tuple(ids), n=self.n).of(session) if ids else None
        if free is None or all(
            getattr(session.cls, name) is getattr(Reference, name) for name in TEXTS
        ):
            return free and (*free, None)
        flags = {"remove_special": True, "unparse_special": False}
        return *free, value_of(session.ask("detokenize", [free[0]], **flags), [None])[0]

    def compare(self, said: bytes, answer: Any, session: LocalSession, noise: float) -> Compared:
        """Compare two texts up to the end of the subject's text, or up to a tie."""
        free, rows, text = answer
        if text is not None:
            return Compared.exactly([said.strip().startswith(text.strip())] * len(free))
        free = free[: self.pieces.count_shown(free)]
        if not free:
            return Compared.exactly([not said])
        best = max(readings(said, free, self.pieces), key=lambda r: (r.end, -len(r.rest)))
        tie = best.end < len(free) and self.is_tie(rows, free, best, noise)
        if not said and rows and is_written(self.pieces[free[0]]):  # control tokens have no text
            return Compared.exactly([tie], ties=int(tie))
        if best.end < len(free) and (why_not_compared(best, free, self.pieces) or tie):
            return Compared.exactly([True] * best.end, len(free) - best.end)
        return Compared.exactly(i < best.end for i in range(len(free)))

    def is_tie(self, rows: Any, free: Sequence[int], best: Reading, noise: float) -> bool:
        """Return True if another token that fits the subject's text is as likely."""
        if not rows or not np.isfinite(row := rows[best.end]).all():
            return False
        margins = row.max() - row
        likely = np.flatnonzero(margins <= 2 * float(whole_run(noise, largest(row)).allowed))
        others = (int(token) for token in likely if token != free[best.end])
        return any(fits(self.pieces[token], best.rest, self.pieces) for token in others)

    def shorten(self, n: int) -> "Continued":
        return replace(self, words=f"the first {n} tokens of {self.words}", n=n)

    def beginning(self, said: bytes, n: int) -> bytes:
        """Return the whole text, because a text of fewer tokens is its beginning."""
        return said
