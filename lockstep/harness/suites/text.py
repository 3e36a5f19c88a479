"""Of an engine that shows nothing but text: could greedy tokens of the oracle's model have made it?

A text does not say where its tokens end, and the same bytes may be several tokens. So nothing is
accused unless no token that fits the text is within the noise of the oracle's largest logit.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from lockstep.engine.batch import Batch, steps_of
from lockstep.engine.quants.base import F32
from lockstep.harness.asking.facts import ModelFacts
from lockstep.harness.context.further_runs import n_cells
from lockstep.harness.context.repeats import asked_again
from lockstep.harness.context.suite import BUSY, Context, NoAnswer, Suite, not_offered
from lockstep.harness.judging.compare import largest
from lockstep.harness.judging.tolerances import whole_run
from lockstep.harness.records import Status, Verdict
from lockstep.harness.suites.decode import EXACT_TIE
from lockstep.harness.suites.parts.at_once import asked_at_once
from lockstep.harness.suites.parts.close_calls import (
    Beginning,
    beginnings_of,
    closest,
    designs_that_say,
    said_behind,
    said_of,
    texts_of,
)
from lockstep.harness.suites.parts.full_texts import said_in_full
from lockstep.harness.suites.parts.misread import misread_prompts
from lockstep.harness.suites.parts.no_text import no_text_at_all
from lockstep.harness.suites.parts.oracles_logits import WRONG_ORACLE, oracles_logits
from lockstep.harness.suites.parts.prompt_counts import counted_otherwise
from lockstep.harness.suites.parts.prompts import (
    ALIKE,
    BEFORE,
    LONG,
    N_OTHERS,
    OTHERS,
    SPACED,
)
from lockstep.harness.suites.parts.prompts_read import READ_OTHERWISE, cut_off
from lockstep.harness.suites.parts.text_ends import (
    is_replaced,
    lacks_characters,
    why_not_compared,
)
from lockstep.harness.suites.parts.text_readings import (
    REPLACED,
    Pieces,
    Reading,
    is_text,
    leading,
    readings,
    without_prompt,
)


class Text(Suite, name="text"):
    order = 52
    expected = False  # of an engine that shows more

    def inapplicable(self, facts: ModelFacts) -> str:
        return facts.no_run or ("" if facts.has_vocabulary else "the file has no vocabulary")

    def run(self, context: Context) -> Iterator[Verdict]:
        if (said := not_offered(context, "generate", self.name)) is not None:
            yield from said
            return
        found: set[Status] = set()
        nothing = ""  # to ask behind the first
        try:
            for verdict in behind(context, context.prompt, context.n_steps):
                yield verdict
                found.add(verdict.status)
        except NothingToAsk as error:
            nothing = error.summary
        if "not-compared" in found and (silent := no_text_at_all(context)) is not None:
            yield silent
            return
        for more in (behind_others, close_calls, partial(asked_at_once, behind)):
            if not found <= {"agreed", "excused", "not-applicable"}:
                break
            for verdict in more(context):
                yield verdict
                found.add(verdict.status)
        if nothing:
            status: Status = "not-applicable" if "agreed" in found else "not-compared"
            text = f"behind {context.prompt[:20].decode('utf-8', 'replace')!r}: {nothing}"
            yield context.verdict("text", status, text)


def behind_others(context: Context) -> Iterator[Verdict]:
    """Those that agree in one; what the model leaves open there is no gap of the engine's."""
    same = 0
    room = n_cells(context) - N_OTHERS - 2  # a token is a byte at least, but for BOS and a space
    alike = [ALIKE] if room > len(BEFORE) else []
    foreign = misread_prompts(context)
    for prompt in (*OTHERS, *foreign, *alike, *([LONG[:room]] if room > 0 else [])):
        wrong = False
        try:
            if prompt == ALIKE:
                context.ask(context.subject, "generate", BEFORE, 1)
            for verdict in behind(context, prompt, min(N_OTHERS, context.n_steps)):
                if verdict.status == "agreed":
                    same += 1
                    continue
                more = reason(context, prompt) if is_wrong(verdict) else ""
                text = f"behind {prompt[:20].decode(errors='ignore')!a}: {verdict.summary}{more}"
                yield replace(verdict, summary=text)
                wrong = wrong or verdict.status != "excused"
            if wrong:
                return
        except NothingToAsk:
            continue
        except NoAnswer as error:
            if prompt in OTHERS or error.status not in ("not-compared", "diverged"):
                raise
            text = f"behind a prompt of {len(prompt)} bytes: {error.summary}"
            # what the oracle takes, or what nobody has looked at
            in_vain = error.status == "diverged" or BUSY in error.detail
            yield context.verdict("text", "not-compared" if in_vain else "not-applicable", text)
    if same:
        text = f"the texts behind {same} more prompts are the same, of up to {N_OTHERS} tokens each"
        yield context.verdict("text", "agreed", text)


def reason(context: Context, prompt: bytes) -> str:
    if not prompt.isascii() or prompt.endswith(b"\n"):
        return READ_OTHERWISE
    return {ALIKE: kept_too_long, SPACED: cut_off}.get(prompt, lambda _: "")(context)


def kept_too_long(context: Context) -> str:
    """A clause where the text is right behind a prompt that begins otherwise."""
    try:
        context.ask(context.subject, "generate", OTHERS[0], 1)
        again = list(behind(context, ALIKE, min(N_OTHERS, context.n_steps)))
    except NoAnswer:  # the difference is said all the same
        return ""
    if not again or any(map(is_wrong, again)):
        return ""
    text = "; it is right when it is not asked right behind one that begins alike, so look at what "
    return text + "is kept of a prompt for the next"


def is_wrong(verdict: Verdict) -> bool:
    return verdict.status == "diverged"


def close_calls(context: Context) -> Iterator[Verdict]:
    """The next token where the two likeliest are nearly alike, and not within the noise."""
    if context.facts.decoder_start is not None or "logprobs" in (context.subject_info.levels or ()):
        return
    context.progress("looking for prompts behind which two tokens are nearly alike")
    pieces = Pieces.of(context)
    texts: dict[tuple[int, ...], bytes] = {}
    runs = []
    for whole in texts_of(context, LONG):
        ids, parts = beginnings_of(context, whole)
        texts |= {tuple(ids[:n]): part for n, part in parts.items()}
        runs.append((ids, [*parts]))
    close = [one for one in closest(context, runs) if pieces[one.chosen].strip()]
    answers, left = said_behind(context, close, "generate", lambda one: texts[one.ids])
    same, others, ties, unclear = [], [], 0, 0
    for one, said in own_texts(answers, texts, pieces):
        found = list(judged(context, one.batches, one.logits, [one.chosen], said, pieces))
        wrong = next((verdict for verdict in found if verdict.status == "diverged"), None)
        statuses = {verdict.status for verdict in found}
        others += [] if wrong is None else [(one, said, wrong)]
        same += [one] if statuses == {"agreed"} else []
        unclear += "not-compared" in statuses
        ties += statuses == {"excused"}
    designs = None
    for one, said, wrong in sorted(others, key=lambda other: how_far(other[2]), reverse=True):
        begins = partial(may_begin_with, said, pieces)
        if designs := designs_that_say(context, one.batches, begins, designs):
            continue
        if oracles_logits(context, one.batches) is None:
            yield context.verdict("text", "not-compared", WRONG_ORACLE)
            return
        where = f"behind {texts[one.ids][-20:].decode(errors='ignore')!r}"
        more = counted_otherwise(context, texts[one.ids], len(one.ids))
        yield with_more(replace(wrong, summary=f"{where}: {wrong.summary}"), more)
        return
    if unclear:
        text = f"behind {unclear} prompts its text is longer or shorter than one token's"
        yield context.verdict("text", "not-applicable", text)
    if left:
        yield left.verdict(context, "text")
    n = len(same) + ties + len(others)
    if n or not answers:
        yield from said_of(context, "text", n, same, ties)


def own_texts(
    answers: Sequence[tuple[Beginning, bytes]], texts: dict[tuple[int, ...], bytes], pieces: Pieces
) -> list[tuple[Beginning, bytes]]:
    """Without the prompt, and without the space that some put before every text."""
    own = [without_prompt(said, texts[one.ids], pieces[one.chosen]) for one, said in answers]
    if all(said.startswith(b" ") for said in own):
        own = [said[1:] for said in own]
    return [(one, said) for (one, _), said in zip(answers, own, strict=True)]


def how_far(wrong: Verdict) -> float:
    """Behind the likeliest token; of a text that no token begins with there is no number."""
    margin = wrong.detail["margin"]
    return math.inf if margin is None else float(margin)


def may_begin_with(said: bytes, pieces: "Pieces", run: F32, allowed: float) -> bool:
    row = run[0]
    likely = np.flatnonzero(row.max() - row <= allowed).tolist()
    # some take spaces from its beginning
    texts = [(pieces[token], leading(pieces[token]) + said.lstrip()) for token in likely]
    return any(fits(piece, text, pieces) for piece, text in texts)


class NothingToAsk(NoAnswer):
    """The model has nothing to compare behind a prompt."""

    def __init__(self, why: str) -> None:
        super().__init__("not-compared", why, {})


def behind(
    context: Context, prompt: bytes, n: int, said_before: bytes | None = None
) -> Iterator[Verdict]:
    """Raises NoAnswer."""
    ids = context.ask(context.oracle, "tokenize", [prompt])[0]
    if not ids:
        raise NothingToAsk("the prompt has no tokens, so there is nothing to go on from")
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
    free = free[: pieces.shown(free)]
    if not free:
        raise NothingToAsk("the oracle begins with a token of no text, and engines may end there")
    whole = said_before is not None  # alone it writes all of them
    own = without_prompt(said_text, prompt, b"".join(pieces[token] for token in free))
    found = list(judged(context, batches, logits[-n:], free, own, pieces, whole=whole))
    more = counted_otherwise(context, prompt, len(ids))
    echo = "" if own == said_text else "; it shows the prompt before it"
    for verdict in found:
        yield with_more(replace(verdict, summary=verdict.summary + echo), more)
    if any(map(is_wrong, found)) and said_before is None:
        yield from asked_again(context, "text", said_text, "generate", prompt, n)
    elif left is not None:
        yield left.verdict(context, "text")


def with_more(verdict: Verdict, more: str) -> Verdict:
    more = more if is_wrong(verdict) else ""
    return replace(verdict, summary=verdict.summary + more)


def judged(
    context: Context,
    batches: Sequence[Batch],
    logits: F32,
    free: Sequence[int],
    said: bytes,
    pieces: Pieces,
    *,
    whole: bool = False,
) -> Iterator[Verdict]:
    """logits: the oracle's before each of its tokens; free: those of them that have a text; whole:
    it may end there, or go on, only as an honest run does."""
    if not np.isfinite(logits).all():
        text = "logits are NaN or infinite, so that greedy text is not determined"
        yield context.verdict("text", "not-compared", text)
        return
    best = max(readings(said, free, pieces), key=lambda r: (r.end, -len(r.rest)))
    if best.end == len(free):
        more = "" if len(free) == len(logits) else "; there the oracle's has an end of text"
        yield context.verdict("text", "agreed", f"{same(best)}{more}")
        if best.rest.strip() and not more:
            text = f"its text goes on behind the {len(free)} tokens that were asked for"
            status: Status = "diverged" if whole else "not-compared"
            yield context.verdict("text", status, f"{text}: {best.rest[:40]!r}")
        return
    reason = why_not_compared(best, free, pieces, whole=whole)
    # how many bytes a U+FFFD stands for nobody can tell: one more may be of another token of a tie
    if reason and not (REPLACED in said and lacks_characters(best, free, pieces)):
        yield from ended(context, reason, free, best, pieces)
        return
    noise = context.noise.relative
    tie = first_tie(noise, logits, free, best, pieces)
    if tie is None:  # else more runs are not worth their time: each prompt would have its own
        tie = first_tie(noise := context.noise_on(batches), logits, free, best, pieces)
    if not np.isfinite(noise):
        text = "honest runs of this model overflow, so that no limit can be given for its ties"
        yield context.verdict("text", "not-compared", text)
        return
    if tie is None and reason:
        yield from ended(context, reason, free, best, pieces)
        return
    if tie is None:
        yield divergence(context, logits, free, best, pieces)
        return
    step, detail = tie
    kind = "a tie within the noise" if detail["margin"] else EXACT_TIE
    if step:
        yield context.verdict("text", "agreed", same(Reading(end=step, rest=b"", note=best.note)))
    text = (
        f"token {step} may be {detail['actual']}, the oracle's is {detail['expected']}: {kind} "
        f"({detail['margin']:.2g} apart, allowed {detail['allowed']:.2g}); what "
        f"follows is another text"
    )
    yield context.verdict("text", "excused", text, detail)


def ended(
    context: Context, reason: str, free: Sequence[int], best: Reading, pieces: Pieces
) -> Iterator[Verdict]:
    if best.end:
        yield context.verdict("text", "agreed", same(best))
    unclear = best.end < len(free) - 1 and is_replaced(best.rest, pieces[free[best.end]])
    if unclear or not best.end or lacks_characters(best, free, pieces):
        yield context.verdict("text", "not-compared", reason)


def same(found: Reading) -> str:
    note = f", {found.note}" if found.note else ""
    return f"the text of {found.end} greedy tokens is the same{note}"


def first_tie(
    noise: float, logits: F32, free: Sequence[int], best: Reading, pieces: Pieces
) -> tuple[int, dict[str, Any]] | None:
    """The first token that another honest engine may choose otherwise, and with this very text."""
    rest = b"".join(pieces[token] for token in free[: best.end]) + best.rest
    for step in range(best.end + 1):
        row, chosen = logits[step], free[step]
        allowed = 2 * float(whole_run(noise, largest(row)).allowed)
        margins = row.max() - row
        for token in np.argsort(margins, kind="stable"):
            if margins[token] > allowed:
                break
            piece = pieces[int(token)]
            dropped = best.drops and not is_text(piece)
            if token != chosen and (dropped or fits(piece, rest, pieces)):
                detail = {"step": step, "expected": chosen, "actual": int(token)}
                return step, detail | {"margin": float(margins[token]), "allowed": allowed}
        rest = rest[len(pieces[chosen]) :]
    return None


def fits(piece: bytes, rest: bytes, pieces: Pieces) -> bool:
    """Whether a text may begin with that token, or end inside of it."""
    if REPLACED in rest and REPLACED in piece.decode("utf-8", "replace").encode():
        return True  # nobody can tell
    if pieces.cleans:  # a space before may be gone
        piece, rest = piece.lstrip(b" "), rest.lstrip(b" ")
    return rest.startswith(piece) or piece.startswith(rest)


def divergence(
    context: Context, logits: F32, free: Sequence[int], best: Reading, pieces: Pieces
) -> Verdict:
    """Of all tokens that fit the text there, the likeliest is named."""
    row, chosen = logits[best.end], free[best.end]
    order = np.argsort(-row, kind="stable").tolist()
    fitting = (t for t in order if pieces[t] and fits(pieces[t], best.rest, pieces))
    actual = next(fitting, None)
    margin = None if actual is None else float(row.max() - row[actual])
    detail = {"step": best.end, "expected": chosen, "actual": actual, "margin": margin}
    detail |= {"at_fault": "subject", "expected_text": repr(pieces[chosen])}
    detail |= {"actual_text": repr(best.rest[:40])}
    below = (
        "no token fits it"
        if margin is None
        else f"the likeliest that fits, {actual}, is "
        + (f"{margin:.2g} below the oracle's largest logit")
    )
    if actual == chosen:
        below = "the same token may be meant: are bytes decoded before their characters are whole?"
    text = (
        f"behind {best.end} greedy tokens the text goes on with {best.rest[:40]!r}, the oracle's "
        f"with {pieces[chosen]!r}; {below}; at fault: subject"
    )
    return context.verdict("text", "diverged", text, detail, key=("text", "token"))
