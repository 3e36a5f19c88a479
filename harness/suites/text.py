"""Texts of an engine that shows nothing else: could greedy tokens of the oracle's model have
produced them?

Some engines end their text at a certain string, such as the end of a line. They are compared after
other prompts as well.
"""

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import steps_of
from lockstep.engine.quants.base import F32
from lockstep.harness.asking.facts import ModelFacts
from lockstep.harness.context.chat_template import prompt_ids
from lockstep.harness.context.further_runs import n_cells
from lockstep.harness.context.repeats import asked_again
from lockstep.harness.context.suite import BUSY, Context, NoAnswer, Suite
from lockstep.harness.records import Status, Verdict
from lockstep.harness.suites.parts.at_once import asked_at_once
from lockstep.harness.suites.parts.misread import misread_prompts
from lockstep.harness.suites.parts.next_tokens import (
    Beginning,
    beginnings_of,
    closest,
    said_behind,
    said_of,
    texts_of,
)
from lockstep.harness.suites.parts.no_text import no_text_at_all
from lockstep.harness.suites.parts.offered import not_offered
from lockstep.harness.suites.parts.oracles_logits import (
    WRONG_ORACLE,
    designs_that_say,
    oracles_logits,
)
from lockstep.harness.suites.parts.prompts import (
    ALIKE,
    BEFORE,
    LONG,
    N_OTHERS,
    OTHERS,
    SPACED,
    prompt_that_fills,
)
from lockstep.harness.suites.parts.prompts_read import (
    READ_OTHERWISE,
    counted_otherwise,
    cut_off,
    said_in_full,
)
from lockstep.harness.suites.parts.text_judged import ENDED, fits, judge_text
from lockstep.harness.suites.parts.text_readings import (
    Pieces,
    leading,
    whole_characters,
    without_prompt,
)
from lockstep.harness.suites.parts.threads import several_threads

# name of the question to a program that shows only text, with several threads
THREADS = "text: threads"
PROMPTS = "text: prompts"  # name of the long prompts that a made model gets
BESIDES = ("logits", "greedy", "logprobs")  # levels that show more than text


class Text(Suite, name="text"):
    order = 52
    expected = False  # False: engines that show more are not asked for text

    def inapplicable(self, facts: ModelFacts) -> str:
        return facts.no_run or ("" if facts.has_vocabulary else "the file has no vocabulary")

    def run(self, context: Context) -> Iterator[Verdict]:
        if (said := not_offered(context, "generate", self.name)) is not None:
            yield from said
            return
        found: set[str] = set()
        nothing = ""  # nothing to ask after the first prompt
        try:
            for verdict in behind(context, context.prompt, context.n_steps):
                yield verdict
                found.add(kind(verdict))
        except NothingToAsk as error:
            nothing = error.summary
        if (
            found & {"not-compared", "not-applicable", ENDED}
            and (silent := no_text_at_all(context)) is not None
        ):
            yield silent
            return
        # a chat engine treats a prompt of any length as a whole message
        chat = context.subject_info.chat_only
        calls = () if chat else (close_calls,)
        threads = partial(several_threads, asked=THREADS, besides=BESIDES)
        others = (behind_others, *calls, on_made_model, *(() if nothing else (threads,)))
        for more in (*others, partial(at_once, found)):
            if not found <= {"agreed", "excused", "not-applicable", ENDED}:
                break
            for verdict in more(context):
                yield verdict
                found.add(kind(verdict))
        if nothing:
            status: Status = "not-applicable" if "agreed" in found else "not-compared"
            text = f"after {context.prompt[:20].decode('utf-8', 'replace')!r}: {nothing}"
            yield context.verdict("text", status, text)


def kind(verdict: Verdict) -> str:
    return ENDED if ENDED in verdict.detail else verdict.status


def at_once(found: Container[str], context: Context) -> Iterator[Verdict]:
    """Ask several questions concurrently, and yield the verdicts. found: the kinds of the verdicts
    on single texts, which may end early."""
    yield from asked_at_once(partial(behind, whole=ENDED not in found), context)


def behind_others(context: Context) -> Iterator[Verdict]:
    """Yield verdicts on other prompts, for an engine whose text agrees after the first prompt or
    ends early."""
    same, early = 0, []
    # each token has at least one byte, except for BOS and a space
    room = n_cells(context) - N_OTHERS - 2
    alike = [ALIKE] if room > len(BEFORE) else []
    # some prompts begin alike, which is not the purpose of this question
    foreign = misread_prompts(context)
    long = filter(None, (LONG[: max(0, room)], prompt_that_fills(context, 0)))
    for prompt in (*OTHERS, *alike, *foreign, *long):
        try:
            found = list(behind_another(context, prompt))
            early += [verdict for verdict in found if ENDED in verdict.detail]
            kinds = {*map(kind, found)}
            same += "agreed" in kinds and ENDED not in kinds
            left = ("agreed", "not-applicable", ENDED)
            shown = [verdict for verdict in found if kind(verdict) not in left]
            yield from shown
            if any(verdict.status != "excused" for verdict in shown):
                return
        except NothingToAsk:
            continue
        except NoAnswer as error:
            if prompt in OTHERS or error.status not in ("not-compared", "diverged"):
                raise
            text = f"after a prompt of {len(prompt)} bytes: {error.summary}"
            # True if the oracle accepts the prompt, or if nobody tried it
            in_vain = error.status == "diverged" or BUSY in error.detail
            yield context.verdict("text", "not-compared" if in_vain else "not-applicable", text)
    if early:
        more = f"; so do the texts after {len(early) - 1} more prompts" if len(early) > 1 else ""
        yield replace(early[0], summary=early[0].summary + more)
    if same:
        text = (
            f"the texts after {same} more prompts are the same, with up to {N_OTHERS} tokens each"
        )
        yield context.verdict("text", "agreed", text)


def on_made_model(context: Context) -> Iterator[Verdict]:
    """Yield verdicts on long prompts of a made model, for an engine that shows text alone."""
    shown = {*(context.subject_info.levels or BESIDES)}
    if not shown.intersection(BESIDES):
        yield from context.asked_on_made_models(PROMPTS)


def behind_another(context: Context, prompt: bytes) -> Iterator[Verdict]:
    if prompt == ALIKE:
        context.ask(context.subject, "generate", BEFORE, 1)
    for verdict in behind(context, prompt, min(N_OTHERS, context.n_steps)):
        more = reason(context, prompt) if is_wrong(verdict) else ""
        text = f"after {prompt[:20].decode(errors='ignore')!a}: {verdict.summary}{more}"
        yield replace(verdict, summary=text)


def reason(context: Context, prompt: bytes) -> str:
    if not prompt.isascii() or prompt.endswith(b"\n"):
        return READ_OTHERWISE
    return {ALIKE: kept_too_long, SPACED: cut_off}.get(prompt, lambda _: "")(context)


def kept_too_long(context: Context) -> str:
    """Return a clause if the text is right after a prompt with a different beginning; else ""."""
    try:
        context.ask(context.subject, "generate", OTHERS[0], 1)
        again = list(behind(context, ALIKE, min(N_OTHERS, context.n_steps)))
    except NoAnswer:  # the difference is reported anyway
        return ""
    if not again or any(map(is_wrong, again)):
        return ""
    text = "; the text is right if the prompt before has a different beginning, so look at "
    return text + "the prompt cache"


def is_wrong(verdict: Verdict) -> bool:
    return verdict.status == "diverged"


def close_calls(context: Context) -> Iterator[Verdict]:
    """Yield verdicts on next tokens whose two largest logits are close, but further apart than the
    noise."""
    if context.facts.decoder_start is not None or "logprobs" in (context.subject_info.levels or ()):
        return
    context.progress("looking for prompts with two close next tokens")
    pieces = Pieces.of(context)
    texts: dict[tuple[int, ...], bytes] = {}
    runs = []
    for whole in texts_of(context, LONG):
        ids, parts = beginnings_of(context, whole)
        texts |= {tuple(ids[:n]): part for n, part in parts.items()}
        runs.append((ids, [*parts]))
    # in the middle of a character, engines show nothing, or continue until it is complete
    beginnings = closest(context, runs)
    close = [one for one in beginnings if whole_characters(pieces[one.chosen]).strip()]
    answers, left = said_behind(context, close, "generate", lambda one: texts[one.ids])
    same, others, ties, unclear = [], [], 0, 0
    for one, said in own_texts(answers, texts, pieces):
        found = list(judge_text(context, one.batches, one.logits, [one.chosen], said, pieces))
        wrong = next((verdict for verdict in found if verdict.status == "diverged"), None)
        statuses = {verdict.status for verdict in found}
        others += [] if wrong is None else [(one, said, wrong)]
        same += [one] if statuses == {"agreed"} else []
        unclear += "not-compared" in statuses
        ties += statuses == {"excused"}
    designs = None
    for one, said, wrong in sorted(others, key=lambda other: how_far(other[2]), reverse=True):
        begins = partial(may_begin_with, said, pieces)
        if designs := [*designs_that_say(context, one.batches, begins, designs)]:
            continue
        if oracles_logits(context, one.batches) is None:
            yield context.verdict("text", "not-compared", WRONG_ORACLE)
            return
        where = f"after {texts[one.ids][-20:].decode(errors='ignore')!r}"
        more = counted_otherwise(context, texts[one.ids], len(one.ids))
        yield with_more(replace(wrong, summary=f"{where}: {wrong.summary}"), more)
        return
    if unclear:
        text = f"after {unclear} prompts the engine's text is longer or shorter than one token"
        yield context.verdict("text", "not-applicable", text)
    if left:
        yield left.verdict(context, "text")
    n = len(same) + ties + len(others)
    if n or not answers:
        yield from said_of(context, "text", n, same, ties)


def own_texts(
    answers: Sequence[tuple[Beginning, bytes]], texts: dict[tuple[int, ...], bytes], pieces: Pieces
) -> list[tuple[Beginning, bytes]]:
    """Return the answers without the prompt, and without the leading space that some engines add to
    all texts."""
    own = [without_prompt(said, texts[one.ids], pieces[one.chosen]) for one, said in answers]
    if all(said.startswith(b" ") for said in own):
        own = [said[1:] for said in own]
    return [(one, said) for (one, _), said in zip(answers, own, strict=True)]


def how_far(wrong: Verdict) -> float:
    """Return the margin of the oracle's choice over the likeliest token that fits the text;
    infinity if no token fits."""
    margin = wrong.detail["margin"]
    return math.inf if margin is None else float(margin)


def may_begin_with(said: bytes, pieces: "Pieces", run: F32, allowed: NDArray[np.float64]) -> bool:
    row = run[0]
    likely = np.flatnonzero(row.max() - row <= allowed[0]).tolist()
    # some engines remove spaces from the beginning
    texts = [(pieces[token], leading(pieces[token]) + said.lstrip()) for token in likely]
    return any(fits(piece, text, pieces) for piece, text in texts)


class NothingToAsk(NoAnswer):
    """Raised if there is nothing to compare after a prompt."""

    def __init__(self, why: str) -> None:
        super().__init__("not-compared", why, {})


def behind(
    context: Context,
    prompt: bytes,
    n: int,
    said_before: bytes | None = None,
    *,
    whole: bool = False,
) -> Iterator[Verdict]:
    """Judge the text after a prompt, and yield the verdicts. said_before: the text if the engine
    has already written it; whole: True if the text must not end early. Raises NoAnswer."""
    ids = prompt_ids(context, prompt)
    if not ids:
        raise NothingToAsk("the prompt has no tokens, so there is nothing to continue")
    context.progress(f"the text of {n} tokens")
    free = context.ask(context.oracle, "greedy", ids, n)
    taken, said_text, left = (
        said_in_full(context, prompt, n) if said_before is None else (n, said_before, None)
    )
    n, free = taken, free[:taken]
    batches = steps_of(ids, free, context.facts.decoder_start)
    logits = oracles_logits(context, batches)
    if logits is None:
        yield context.verdict("text", "not-compared", WRONG_ORACLE)
        return
    pieces = Pieces.of(context)
    free = free[: pieces.count_shown(free)]
    if not free:
        raise NothingToAsk("the oracle begins with a token without text, and engines may end there")
    own = without_prompt(said_text, prompt, b"".join(pieces[token] for token in free))
    found = list(judge_text(context, batches, logits[-n:], free, own, pieces, whole=whole))
    more = counted_otherwise(context, prompt, len(ids))
    echo = "" if own == said_text else "; the engine repeats the prompt before the text"
    for verdict in found:
        yield with_more(replace(verdict, summary=verdict.summary + echo), more)
    if any(map(is_wrong, found)) and said_before is None:
        yield from asked_again(context, "text", said_text, "generate", prompt, n)
    elif left is not None:
        yield left.verdict(context, "text")


def with_more(verdict: Verdict, more: str) -> Verdict:
    more = more if is_wrong(verdict) else ""
    return replace(verdict, summary=verdict.summary + more)
