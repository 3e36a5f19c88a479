"""Views of an engine. They range from all tensors, layer outputs, logits and lists of likely tokens
down to greedy tokens alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lockstep.engine.batch import Batch
from lockstep.harness.asking.session import Session
from lockstep.harness.mutants.tokenizers import WrongTokenizer
from lockstep.harness.records import (
    Answered,
    EngineInfo,
    Evaluation,
    Outcome,
    Request,
    Trace,
    Unanswerable,
)
from lockstep.harness.sites import SITES

K = 20  # candidates, as many as OpenAI's interface gives
RUNS = frozenset({"tokenize", "detokenize", "evaluate", "embed", "greedy"})
LAYER_ENDS = ("embd", "l_out", "result_output")
Row = list[tuple[int, float]]


@dataclass(frozen=True, kw_only=True)
class View:
    """A view of an engine. `levels` are the levels of harness.protocol that it states; None if it
    states none."""

    name: str
    levels: tuple[str, ...] | None = None
    questions: frozenset[str] = RUNS
    shows: tuple[str, ...] = ()  # names of tensors


ALL = View(name="tensors", questions=frozenset())
LAYERS = View(name="layers", shows=LAYER_ENDS)
LOGITS = View(name="logits", levels=("tokenize", "embed", "logits", "greedy"))
LISTS = View(
    name="top-k",
    levels=("tokenize", "logprobs", "greedy"),
    questions=frozenset({"tokenize", "detokenize", "logprobs", "greedy"}),
)
# a model without a vocabulary has no texts, so tokens take their place
TEXT = View(name="text", levels=("greedy",), questions=frozenset({"greedy"}))
# only texts show a tokenizer's mistakes
TEXTS = View(name="text", levels=("generate",), questions=frozenset({"generate"}))
VIEWS = (ALL, LAYERS, LOGITS, LISTS, TEXT)


class Narrow(Session):
    """An engine that shows only what a view allows."""

    def __init__(self, inner: Session, view: View) -> None:
        self.inner, self.view = inner, view
        self.name, self.model = inner.name, inner.model

    def _ask(
        self,
        question: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        consume: Callable[[Any], None] | None = None,
    ) -> Outcome:
        if question == "describe":
            return self.describe_view()
        request = args[0] if question == "evaluate" else None
        shown = isinstance(request, Request) and request.capture and not self.view.shows
        put_in = isinstance(request, Request) and bool(request.replace)
        if question not in self.view.questions or shown or put_in:
            return Unanswerable(message=f"{self.name} does not offer {question}", declared=True)
        if question == "logprobs":
            return self.lists(*args)
        if question == "generate":
            return self.text_behind(*args)
        outcome = self.inner._ask(question, args, kwargs, consume)
        return self.narrow(outcome) if question == "evaluate" else outcome

    def narrow(self, outcome: Outcome) -> Outcome:
        """Keep only the tensors of the view."""
        if not isinstance(outcome, Answered) or outcome.value.trace is None:
            return outcome
        found: Evaluation = outcome.value
        assert found.trace is not None
        records = tuple(r for r in found.trace.records if r.site.name in self.view.shows)
        trace = Trace(engine=found.trace.engine, records=records)
        return replace(outcome, value=replace(found, trace=trace))

    def lists(self, prefixes: Sequence[Sequence[int]], k: int) -> Outcome:
        """Return the likeliest tokens after each prefix, with the logarithms of their
        probabilities."""
        rows: list[Row] = []
        for ids in prefixes:
            outcome = self.inner.ask("evaluate", Request(batches=(Batch.for_next(ids),)))
            if not isinstance(outcome, Answered):
                return outcome
            logits = outcome.value.logits[0][-1].astype(np.float64)
            with np.errstate(all="ignore"):
                values = logits - logits.max()
                values -= np.log(np.exp(values).sum())
            likeliest = np.argsort(-values, kind="stable")[: min(k, K)]
            rows.append([(int(token), float(values[token])) for token in likeliest])
        return Answered(value=rows, seconds=0.0)

    def text_behind(self, prompt: bytes, n: int) -> Outcome:
        """Return the text of n greedy tokens after the prompt."""
        ids = self.inner.ask("tokenize", [prompt])
        free = self.inner.ask("greedy", ids.value[0], n) if isinstance(ids, Answered) else ids
        if not isinstance(free, Answered):
            return free
        flags = {"remove_special": True, "unparse_special": False}
        text = self.inner.ask("detokenize", [free.value], **flags)
        return replace(text, value=text.value[0]) if isinstance(text, Answered) else text

    def describe_view(self) -> Outcome:
        outcome = self.inner.ask("describe")
        if not isinstance(outcome, Answered):
            return outcome
        info: EngineInfo = outcome.value
        narrow = replace(
            info,
            shows=self.view.shows,
            fixed=tuple(SITES),
            shows_nodes=False,
            levels=self.view.levels,
        )
        return replace(outcome, value=narrow)

    def close(self) -> None:
        self.inner.close()


def seen_through(view: View, session: Session) -> Session:
    return session if view == ALL else Narrow(session, view)


def views_of(cls: type[Any], some: Sequence[View] = VIEWS) -> tuple[View, ...]:
    """Return the views for testing an engine. For a wrong tokenizer the view TEXTS replaces
    TEXT."""
    wrong = issubclass(cls, WrongTokenizer)
    return tuple(TEXTS if wrong and view == TEXT else view for view in some)
