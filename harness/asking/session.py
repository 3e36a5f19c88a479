"""A session with one engine, one model and one preset; every question ends in an outcome."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from lockstep.engine.errors import InvalidModel
from lockstep.engine.gguf.regular_file import check_regular
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.answers import Facts, MalformedAnswer, check_answer, check_piece, facts_of
from lockstep.harness.asking.waits import InVain
from lockstep.harness.asking.worker import QUESTIONS, STREAMS, failure
from lockstep.harness.processes.wire import WireError
from lockstep.harness.records import (
    Answered,
    Crashed,
    Malformed,
    Outcome,
    Rejected,
    Settings,
    Site,
    TimedOut,
    Unanswerable,
)

# names of questions in the protocol and in commands, where they differ
IN_WORDS = {"describe": "start", "metadata": "parse", "evaluate": "logits", "capture": "its graph"}


def in_words(question: str) -> str:
    """Return a description of the question, with its details."""
    name, _, rest = question.partition(" ")
    return f"{IN_WORDS.get(name, name)} {rest}".strip()


class Session:
    """Session with one engine, one model and one preset; a context manager."""

    name: str  # name of the adapter
    model: Path | None = None
    takes_several = False  # True: the engine accepts several questions at a time

    @cached_property
    def facts(self) -> Facts:
        """Return the facts for checking answers. Our own reader reads the file once, at the first
        answer.
        """
        return facts_of(self.model)

    @cached_property
    def recorded(self) -> dict[bytes, Any]:
        """Return the recorded programs by run (harness.graph.record)."""
        return {}

    @cached_property
    def counted(self) -> dict[bytes, int]:
        """Return the number of tokens of each text prompt so far, as the engine counted them."""
        return {}

    @cached_property
    def in_vain(self) -> InVain:
        """Return the runs that timed out."""
        return InVain()

    @property
    def stored(self) -> Mapping[Site, str]:
        """Return the stored type of each shown value whose stored type differs from its computed
        type."""
        return {}

    @property
    def pid(self) -> int | None:
        """Return the worker's process id; None if there is no worker."""
        return None

    @property
    def asks(self) -> "Session | None":
        """Return the session from which this session gets its answers; None if it needs no other
        session."""
        return None

    def another(self) -> "Session | None":
        """Return a second session with the same engine and model. Return None if the engine is not
        a process that can be restarted.

        A question to the second session does not delay other users of the first.
        """
        return None

    def ask_at_once(
        self, question: str, every: Sequence[tuple[Any, ...]], *, more_seconds: float
    ) -> list[Outcome]:
        """Send all questions before the first answer arrives, if the engine accepts several
        questions at a time. The time limit of each question is longer by `more_seconds`, because
        the engine may answer other questions first."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the engine's process early, so that the first question waits less."""

    def check_model(self) -> None:
        """Refuse a model path that is no longer a regular file, because opening a pipe would block.
        Raises InvalidModel."""
        try:
            if self.model is not None:
                check_regular(self.model)
        except FileNotFoundError:  # the engine reports this itself
            pass
        except OSError as error:
            raise InvalidModel(f"{self.model}: {error.strerror or error}") from error

    def ask(self, question: str, *args: Any, **kwargs: Any) -> Outcome:
        """Call the adapter's method `question`, and return the outcome. Raises InvalidModel."""
        self.check_model()
        if question not in QUESTIONS:
            raise ValueError(f"no question named {question!r} (known: {', '.join(QUESTIONS)})")
        if known := self.in_vain.known_wait(question, args):
            return known
        return self._checked(question, args, kwargs, self._ask(question, args, kwargs))

    def stream(
        self, question: str, consume: Callable[[Any], None], *args: Any, **kwargs: Any
    ) -> Outcome:
        """Ask like `ask`, for an answer that comes in pieces. `consume` gets each piece before the
        next piece comes. The time limit applies to the wait for each piece, because `consume` takes
        time too."""
        if question not in STREAMS:
            raise ValueError(f"no stream named {question!r} (known: {', '.join(STREAMS)})")
        self.check_model()

        failed: list[Exception] = []

        def check_then_consume(piece: Any) -> None:
            try:
                check_piece(question, piece, self.facts, args, kwargs)
                consume(piece)
            except Exception as error:
                failed.append(error)
                raise

        try:
            outcome = self._ask(question, args, kwargs, check_then_consume)
            if failed:  # an engine in this process gets the error too, and may suppress it
                raise failed[0]
        except MalformedAnswer as error:
            return Malformed(message=str(error))
        return self._checked(question, args, kwargs, outcome)

    def _checked(
        self, question: str, args: tuple[Any, ...], kwargs: dict[str, Any], outcome: Outcome
    ) -> Outcome:
        """Return the outcome after a check of its answer, so that no suite sees a malformed
        answer."""
        if isinstance(outcome, Answered):
            try:
                check_answer(question, outcome.value, self.facts, args, kwargs)
            except MalformedAnswer as error:
                return Malformed(message=str(error))
        if isinstance(outcome, TimedOut):
            return self.in_vain.add(question, args, outcome)
        return outcome

    def _ask(
        self,
        question: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        consume: Callable[[Any], None] | None = None,
    ) -> Outcome:
        raise NotImplementedError

    def close(self) -> None:
        """Release the engine's resources. A worker has ended when this returns."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LocalSession(Session):
    """A session with a trusted engine in this process, without limits."""

    def __init__(self, cls: type[Adapter], model: Path | None, settings: Settings) -> None:
        self.cls = cls
        self.name = cls.name
        self.model = model
        self.settings = settings
        self.adapter: Adapter | None = None
        self.lender: Session | None = None

    @property
    def asks(self) -> Session | None:
        return self.lender

    def _ask(
        self,
        question: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        consume: Callable[[Any], None] | None = None,
    ) -> Outcome:
        extra = {} if consume is None else {"emit": consume}
        return self.attempt(lambda engine: getattr(engine, question)(*args, **kwargs, **extra))

    def attempt(self, work: Callable[[Adapter], Any]) -> Outcome:
        """Run `work` on the engine, and return the outcome in the form that a question's outcome
        has."""
        started = time.perf_counter()
        try:
            self.adapter = self.adapter or self.cls(self.model, self.settings)
            value = work(self.adapter)
        except Exception as error:
            return outcome_of(failure(error))
        return Answered(value=value, seconds=time.perf_counter() - started)

    def close(self) -> None:
        if self.adapter is not None:
            self.adapter.close()
            self.adapter = None


def outcome_of(answer: Any) -> Outcome:
    """Return a worker's answer as an outcome. Raises WireError for a malformed answer."""
    match answer:
        case {"kind": "value", "value": value, "seconds": float(seconds)}:
            return Answered(value=value, seconds=seconds)
        case {"kind": "rejected", "message": str(message)}:
            return Rejected(message=message)
        case {
            "kind": "unanswerable",
            "message": str(message),
            "of_model": bool(of_model),
            "declared": bool(declared),
        }:
            return Unanswerable(message=message, of_model=of_model, declared=declared)
        case {"kind": "crashed", "message": str(message)}:
            return Crashed(message=message, said=True)
        case {"kind": "malformed", "message": str(message)}:
            return Malformed(message=message)
    raise WireError("an answer must be a value, a refusal or a crash")
