"""The text that an engine writes after a prompt, at any level. Answers other than text are
converted to text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.engine.batch import steps_of
from lockstep.harness.asking.session import Session
from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.records import Answered, Request, Unanswerable

SPACE = "\u2581"  # vocabularies store a space so
FLAGS = {"remove_special": True, "unparse_special": False}


@dataclass(frozen=True)
class WrittenText:
    """A text that an engine wrote. given_ids: True if the prompt's ids come from the oracle,
    because the engine has no tokenizer."""

    text: str
    given_ids: bool = False


Way = Callable[[Context, Session, str, int], WrittenText | None]


def text_behind(context: Context, session: Session, prompt: str, n: int) -> WrittenText:
    """Return the text of n greedy tokens. Raises NoAnswer if the engine offers no level for it."""
    for way in (by_text, by_tokens, by_logits, by_lists):
        if (found := way(context, session, prompt, n)) is not None:
            return found
    text = f"{session.name} offers neither text nor greedy tokens, logits or candidates"
    said = session.ask("greedy", [0], 1)
    if isinstance(said, Unanswerable) and not said.declared:  # the engine gives the reason
        text += f": {said.message}"
    raise NoAnswer("not-compared", text, {})


def ask_if_offered(
    context: Context, session: Session, question: str, *args: Any, **flags: Any
) -> Any:
    """Return the answer; None if the engine does not offer the question."""
    outcome = session.ask(question, *args, **flags)
    if isinstance(outcome, Answered):
        return outcome.value
    return None if isinstance(outcome, Unanswerable) else context.answer(session, question, outcome)


def by_text(context: Context, session: Session, prompt: str, n: int) -> WrittenText | None:
    said = ask_if_offered(context, session, "generate", prompt.encode(), n)
    return None if said is None else WrittenText(said.decode("utf-8", "replace"))


def by_tokens(context: Context, session: Session, prompt: str, n: int) -> WrittenText | None:
    ids, given = ids_of(context, session, prompt)
    new = ask_if_offered(context, session, "greedy", ids, n)
    return None if new is None else WrittenText(text_of(context, session, new), given)


def by_logits(context: Context, session: Session, prompt: str, n: int) -> WrittenText | None:
    """Return the text of the engine's likeliest tokens, each after the oracle's tokens. All answers
    of a test lead to the same next test, so a wrong answer does not affect later tests."""
    if not may_have(context, session, "logits"):
        return None
    ids, given = ids_of(context, session, prompt)
    new = context.ask(context.oracle, "greedy", ids, n)
    run = ask_if_offered(context, session, "evaluate", Request(batches=steps_of(ids, new, None)))
    if run is None:
        return None
    likeliest = np.concatenate(run.logits)[-n:].argmax(axis=1).tolist()
    return WrittenText(text_of(context, session, likeliest), given)


def by_lists(context: Context, session: Session, prompt: str, n: int) -> WrittenText | None:
    """Return the text of the engine's first candidates, each after the oracle's tokens. A candidate
    is an id or a text."""
    ids, given = ids_of(context, session, prompt)
    new = context.ask(context.oracle, "greedy", ids, n)
    lists = ask_if_offered(context, session, "logprobs", [[*ids, *new[:i]] for i in range(n)], 1)
    if lists is None:
        return None
    first = [row[0][0] for row in lists if row]
    text = "".join(
        token.decode("utf-8", "replace").replace(SPACE, " ")
        if isinstance(token, bytes)
        else text_of(context, session, [token])
        for token in first
    )
    return WrittenText(text, given)


def may_have(context: Context, session: Session, level: str) -> bool:
    levels = context.subject_info.levels if session is context.subject else None
    return levels is None or level in levels


def ids_of(context: Context, session: Session, prompt: str) -> tuple[list[int], bool]:
    """Return the ids of the prompt, and True if they come from the oracle because the engine has no
    tokenizer."""
    own = ask_if_offered(context, session, "tokenize", [prompt.encode()])
    found = own or context.ask(context.oracle, "tokenize", [prompt.encode()])
    return found[0], not own


def text_of(context: Context, session: Session, ids: Sequence[int]) -> str:
    found = ask_if_offered(context, session, "detokenize", [list(ids)], **FLAGS)
    found = found or context.ask(context.oracle, "detokenize", [list(ids)], **FLAGS)
    text: bytes = found[0]
    return text.decode("utf-8", "replace")
