"""What an engine shows of itself: all that it has, its logits alone, or its greedy tokens alone."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from engine.trace import SITES
from harness.records import Answered, EngineInfo, Outcome, Request, Unanswerable
from harness.session import Session


@dataclass(frozen=True, kw_only=True)
class View:
    """levels: of harness.protocol, by the question that each is; None: all that it has."""

    name: str
    levels: tuple[str, ...] | None = None
    questions: frozenset[str] = frozenset()


ALL = View(name="tensors")
LOGITS = View(
    name="logits",
    levels=("tokenize", "logits", "greedy"),
    questions=frozenset({"tokenize", "detokenize", "evaluate", "embed", "greedy"}),
)
# what is said behind a text needs a vocabulary: of models without one, tokens
TEXT = View(name="text", levels=("greedy",), questions=frozenset({"greedy"}))
VIEWS = (ALL, LOGITS, TEXT)


class Narrow(Session):
    """An engine that shows no more than a view."""

    def __init__(self, inner: Session, view: View) -> None:
        self.inner, self.view = inner, view
        self.name, self.model, self.own_sites = inner.name, inner.model, inner.own_sites

    def _ask(
        self,
        question: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        consume: Callable[[Any], None] | None = None,
    ) -> Outcome:
        if question == "describe":
            return self.described()
        request = args[0] if question == "evaluate" else None
        tensors = isinstance(request, Request) and (request.capture or bool(request.replace))
        if question not in self.view.questions or tensors:
            return Unanswerable(message=f"{self.name} does not offer {question}", declared=True)
        return self.inner._ask(question, args, kwargs, consume)

    def described(self) -> Outcome:
        outcome = self.inner.ask("describe")
        if not isinstance(outcome, Answered):
            return outcome
        info: EngineInfo = outcome.value
        narrow = replace(
            info, shows=(), fixed=tuple(SITES), shows_nodes=False, levels=self.view.levels
        )
        return replace(outcome, value=narrow)

    def close(self) -> None:
        self.inner.close()


def seen_through(view: View, session: Session) -> Session:
    return session if view.levels is None else Narrow(session, view)
