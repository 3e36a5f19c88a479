"""Cached answers of the oracle and of honest runs, for tests of many engines."""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from lockstep.harness.asking.session import Session
from lockstep.harness.context.suite import Context, HonestRuns
from lockstep.harness.processes.wire import digest
from lockstep.harness.records import Answered, Outcome

ONCE = ("evaluate", "greedy", "embed", "tokenize", "detokenize", "dequantize", "multiply")


class Remembering(Session):
    """A session that asks a deterministic engine, such as the oracle, each question only once."""

    def __init__(self, inner: Session) -> None:
        self.inner = inner
        self.name, self.model = inner.name, inner.model
        self.known: dict[bytes, Outcome] = {}

    def _ask(
        self,
        question: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        consume: Callable[[Any], None] | None = None,
    ) -> Outcome:
        if question not in ONCE:
            return self.inner._ask(question, args, kwargs, consume)
        key = digest(question, args, kwargs)
        if key not in self.known:
            outcome = self.inner._ask(question, args, kwargs, consume)
            if not isinstance(outcome, Answered):
                return outcome
            self.known[key] = outcome
        return self.known[key]

    def close(self) -> None:
        self.inner.close()


def remember(context: Context) -> None:
    """Cache the oracle's answers, and the honest runs of logits and embeddings."""
    context.oracle = Remembering(context.oracle)
    make = context.make_honest
    both = [remembering(make(each)) for each in (context, context.for_embeddings())]
    context.make_honest = lambda each: both[each.embeddings]


def remembering(honest: HonestRuns) -> HonestRuns:
    """Return honest runs that are cached, so that each run is made at most once."""
    for name in ("floor", "logits", "converted", "recording"):
        if method := getattr(honest, name, None):
            setattr(honest, name, once(method))
    honest.begin = nothing  # type: ignore[method-assign]
    return honest


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing. This replaces a function that starts a run early, because most results are
    cached."""


def once(method: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[bytes, Any] = {}

    def call(batches: Any, **options: Any) -> Any:
        key = digest(tuple(batches), options)
        if key not in known:
            found = method(batches, **options)
            known[key] = Kept(found) if isinstance(found, Iterator) else found
        return known[key]

    return call


class Kept:
    """The values of an iterator, each computed when first needed and kept for later readers."""

    def __init__(self, source: Iterator[Any]) -> None:
        self.source = source
        self.values: list[Any] = []
        self.failed: Exception | None = None

    def __iter__(self) -> Iterator[Any]:
        for number in count():
            if number == len(self.values):
                if self.failed is not None:
                    raise self.failed
                try:
                    self.values.append(next(self.source))
                except StopIteration:
                    return
                except Exception as error:
                    self.failed = error  # later readers get the same error instead of an end
                    raise
            yield self.values[number]
