"""Lists of the likeliest tokens, for an engine that shows no logits: their ids, and the distances
between them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from lockstep.engine.batch import Batch
from lockstep.engine.errors import EngineError
from lockstep.engine.ops.near import LARGEST
from lockstep.engine.quants.base import F32
from lockstep.engine.tokenizers.vocabulary import Attr
from lockstep.harness.asking.facts import ModelFacts
from lockstep.harness.context.further_runs import LeftOut, batches_behind, longer
from lockstep.harness.context.repeats import asked_again
from lockstep.harness.context.suite import Context, NoAnswer, Suite
from lockstep.harness.judging.candidates import (
    Listed,
    Off,
    names_of,
    off_from,
    read_list,
    spread,
)
from lockstep.harness.judging.compare import largest
from lockstep.harness.judging.telling import why_nothing_is_told
from lockstep.harness.judging.tolerances import whole_run
from lockstep.harness.records import Answered, Request, Verdict
from lockstep.harness.suites.parts.control_tokens import ids_of_control
from lockstep.harness.suites.parts.lists import (
    alike,
    ending,
    ends,
    find_scale,
    first_off,
    left_open,
)
from lockstep.harness.suites.parts.offered import not_offered
from lockstep.harness.suites.parts.oracles_logits import honest_runs
from lockstep.harness.suites.parts.prompts_read import counted_otherwise
from lockstep.harness.suites.parts.threads import several_threads
from lockstep.harness.suites.parts.whole_runs import is_oracle_wrong

MOST = 1024  # candidates of a list; more would add little, and a server would send megabytes
ENOUGH = 5  # candidates whose distances identify a row: two different rows hardly share as many
MOST_LOGITS = 1 << 25  # 128 MB
# lengths of prefixes in addition to the whole prompt; each may cost a request
LENGTHS = (1, 2, 3, 5, 8, 13, 21)
TEXT = (
    b"Once upon a time, there was a little girl named Lily. She loved to play outside, and on "
    b"sunny days she took her red ball to the park, where 12 of her friends were waiting."
)
# name of the question to a program that shows only lists, with several threads
THREADS = "logprobs: threads"
MIDDLE = 2  # tokens before the middle that must be equal, at least
WRONG_ORACLE = "lists are compared with the oracle's logits, and these are wrong"


class LogProbs(Suite, name="logprobs"):
    order = 42
    expected = False  # False: engines that show logits are not asked for lists

    def inapplicable(self, facts: ModelFacts) -> str:
        if facts.decoder_start is not None:
            return (
                facts.no_run or "the model's encoder reads the whole prompt, so it has no prefixes"
            )
        return facts.no_choice

    def run(self, context: Context) -> Iterator[Verdict]:
        if (said := not_offered(context, "logprobs", self.name)) is not None:
            yield from said
            return
        asked = by_text(context) if context.subject_info.text_only else by_ids(context)
        context.progress(f"the likeliest tokens after {len(asked.prefixes)} prefixes")
        run = context.ask(context.oracle, "evaluate", Request(batches=asked.batches))
        logits = np.concatenate(run.logits)
        k = min(MOST, logits.shape[1])
        lists = context.ask(context.subject, "logprobs", asked.prefixes, k)
        listed = [read_list(row, names(context, lists)) for row in lists]
        verdict = compare_lists(context, asked, logits, listed)
        wrong: list[Verdict] = []
        if verdict.status == "agreed":
            try:
                text, wrong = behind_one_alike(context, asked, k)
            except NoAnswer:
                yield verdict
                raise
            yield replace(verdict, summary=verdict.summary + text)
            yield from wrong
        else:
            yield verdict
        if asked.left_out:
            yield asked.left_out.verdict(context, "logprobs")
        if verdict.status == "agreed":
            allowed = verdict.detail["allowed_relative"] * (largest(logits) or 1.0)
            ended = ends(context, listed, logits, allowed)
            if ended:
                yield context.verdict("logprobs", "excused", ending(listed, ended))
            if text := left_open(listed, ended):
                yield context.verdict("logprobs", "not-compared", text)
            if not wrong:
                yield from several_threads(context, THREADS, ("logits", "greedy"))
        elif verdict.status == "diverged":
            row = verdict.detail["list"]
            asked_for, same = asked.prefixes[row : row + 1], partial(alike, verdict.detail["limit"])
            first = lists[row : row + 1]
            yield from asked_again(context, "logprobs", first, "logprobs", asked_for, k, same=same)


@dataclass(frozen=True, kw_only=True)
class AskedPrefixes:
    """Prefixes with their batches. prefixes: ids or texts, depending on what the engine accepts;
    batches: one row of logits for each prefix."""

    prefixes: list[list[int] | bytes]
    batches: tuple[Batch, ...]
    left_out: LeftOut | None = None  # longer prefixes without an answer

    @property
    def ends(self) -> list[int]:
        """Return the number of tokens in each prefix."""
        return [int(at) + 1 for batch in self.batches for at in np.flatnonzero(batch.outputs)]


def by_ids(context: Context) -> AskedPrefixes:
    ids = context.tokens[: context.n_tokens]
    ends = [n for n in LENGTHS if n < len(ids)] + [len(ids)]
    ids, more, left = longer(context, ids, "logprobs")
    ends += more
    batches = batches_behind(context, ids, ends)
    return AskedPrefixes(prefixes=[ids[:n] for n in ends], batches=batches, left_out=left)


def by_text(context: Context) -> AskedPrefixes:
    """Return prefixes of a text. The ids of each prefix are the first ids of the whole text."""
    if not context.facts.has_vocabulary:
        why = f"{context.subject.name} takes only texts, and the file has no vocabulary"
        raise NoAnswer("not-applicable", why, {})
    ids: list[int] = context.ask(context.oracle, "tokenize", [TEXT])[0][: context.n_tokens]
    flags = {"remove_special": True, "unparse_special": False}
    numbers = range(1, len(ids) + 1)
    found = context.ask(context.oracle, "detokenize", [ids[:n] for n in numbers], **flags)
    # the space that a vocabulary puts before a text is not part of the text
    texts = [text if TEXT.startswith(text) else text[1:] for text in found]
    again = context.ask(context.oracle, "tokenize", texts)
    fits = [n for n in numbers if texts[n - 1] and again[n - 1] == ids[:n]]
    if not fits:
        text = (
            "no part of a text tokenizes to the first ids of that text, so there is no "
            "prefix to ask for"
        )
        raise NoAnswer("not-compared", text, {})
    places = sorted({0, *(n for n in LENGTHS if n < len(fits)), len(fits) - 1})
    ends = [fits[place] for place in places]
    return AskedPrefixes(
        prefixes=[texts[n - 1] for n in ends],
        batches=batches_behind(context, ids[: ends[-1]], ends),
    )


def behind_one_alike(context: Context, asked: AskedPrefixes, k: int) -> tuple[str, list[Verdict]]:
    """Ask a prompt, then the same prompt with a different middle. An engine that keeps keys and
    values must find how many tokens both prompts share. No other question tests this, because in
    all other questions each prompt is a prefix of the next prompt, or begins differently. Return
    words for the agreement, and verdicts on differences."""
    usual = [p for p in asked.prefixes if isinstance(p, bytes) or len(p) <= context.n_tokens]
    if not usual or (other := with_another_middle(context, usual[-1])) is None:
        return "", []
    ids = context.ask(context.oracle, "tokenize", [other])[0] if type(other) is bytes else other
    one = AskedPrefixes(prefixes=[other], batches=(Batch.for_next(ids),))
    run = context.ask(context.oracle, "evaluate", Request(batches=one.batches))

    def behind(first: list[int] | bytes) -> Verdict:
        lists = context.ask(context.subject, "logprobs", [first, other], k)[1:]
        listed = [read_list(row, names(context, lists)) for row in lists]
        return compare_lists(context, one, run.logits[0], listed)

    context.progress("a prompt after one with the same beginning")
    found = behind(usual[-1])
    if found.status != "diverged":
        return "; the same after a prompt with the same beginning" * (found.status == "agreed"), []
    again = behind(b"2 + 2 =" if type(other) is bytes else ids[::-1])
    text = f"after a prompt that differs from the middle on: {found.summary}"
    if again.status == "agreed":
        text += "; after a prompt with a different beginning it is right. Look at the prompt "
        text += "cache: it may reuse only the common prefix"
    return "", [replace(found, summary=text, key=f"{found.key}/begins-alike")]


def with_another_middle(context: Context, prefix: list[int] | bytes) -> list[int] | bytes | None:
    """Return the prefix with a different middle; None if it is too short."""
    if isinstance(prefix, bytes):
        n = len(prefix) // 2  # the text is ASCII, so any place may be cut
        return prefix[:n] + b"my" + prefix[n + 2 :] if n > 2 * MIDDLE else None
    n, n_vocab = len(prefix) // 2, context.facts.n_vocab
    if n < MIDDLE or n_vocab < 2:
        return None
    return [*prefix[:n], (prefix[n] + n_vocab // 2) % n_vocab, *prefix[n + 1 :]]


def names(context: Context, lists: Sequence[Sequence[tuple[Any, float]]]) -> dict[bytes, Any]:
    """Return the tokens for each text in the lists; {} if no list has texts. Raises NoAnswer if our
    tokenizer cannot read the vocabulary."""
    if not any(type(token) is bytes for row in lists for token, _ in row):
        return {}
    try:
        tokenizer = context.tokenizer
    except EngineError as error:
        text = f"candidates are texts, and our tokenizer cannot map them to tokens: {error}"
        raise NoAnswer("not-compared", text, {}) from error
    attrs = enumerate(tokenizer.vocabulary.attrs)
    hidden = {token for token, attr in attrs if attr & Attr.HIDDEN}
    return names_of(tokenizer.pieces, tokenizer.vocabulary.texts, hidden)


def compare_lists(
    context: Context, asked: AskedPrefixes, logits: F32, listed: Sequence[Listed]
) -> Verdict:
    batches = asked.batches
    if not (np.isfinite(logits) | np.isneginf(logits)).all():
        text = "logits are NaN or infinite, so probabilities are undefined"
        return context.verdict("logprobs", "not-compared", text)
    truth = np.concatenate(context.honest.floor(batches, seed=context.seed, runs=0).logits)
    if is_oracle_wrong(context, batches, logits, truth):
        return context.verdict("logprobs", "not-compared", WRONG_ORACLE)
    n = sum(len(each.candidates) for each in listed)
    if not n:
        text = f"{context.subject.name} lists no known token"
        return context.verdict("logprobs", "not-compared", text)
    bound = whole_run(context.noise.relative, largest(logits))
    first = first_off(listed, logits, float(bound.allowed))
    if first is not None:
        bound = whole_run(context.noise_on(batches), largest(logits))
        first = first_off(listed, logits, float(bound.allowed))
    if not np.isfinite(bound.allowed):
        text = "honest runs of this model overflow, so there is no limit"
        return context.verdict("logprobs", "not-compared", text, {"reason": bound.reason})
    detail = what_was_compared(listed, logits, float(bound.allowed)) | {"reason": bound.reason}
    if first is None:
        return told_by_lists(context, logits, agreement(listed, detail), detail)
    if (run := honest_run_of(context, batches, listed)) is not None:
        allowed = float(whole_run(context.noise_on(batches), largest(run)).allowed)
        detail = what_was_compared(listed, run, allowed) | {"reason": bound.reason}
        text = f"{agreement(listed, detail)}, compared with an honest run of another design"
        return told_by_lists(context, run, text, detail)
    row, off = first
    detail |= {"prefix": asked.prefixes[row], "at_fault": "subject", "kind": off.kind}
    detail["prefix"] = (
        repr(detail["prefix"]) if context.subject_info.text_only else detail["prefix"]
    )
    detail |= {"token": off.token, "expected": off.expected, "actual": off.actual}
    detail |= {"list": row, "limit": float(bound.allowed)}
    beginning = asked.batches[-1].tokens[: asked.ends[row]].tolist()
    elsewhere = whose(context, beginning, listed[row], float(bound.allowed))
    detail["right_after"] = elsewhere
    text = f"after prefix {row + 1} of {len(listed)}, {lengths(asked.ends, row)}, {sentence(off)}"
    text += f"; the list would be right after the first {elsewhere[-1]} tokens" if elsewhere else ""
    text += "; at fault: the engine under test"
    scale = find_scale(listed, logits, float(bound.allowed))
    text += f"; {scale.describe()}" if scale else ""
    detail |= scale.facts() if scale else {}
    if off.missing and set(off.missing) <= set(ids_of_control(context).tolist()):
        text += "; all missing tokens are control tokens"
    if isinstance(given := asked.prefixes[row], bytes):
        text += counted_otherwise(context, given, asked.ends[row])
    return context.verdict("logprobs", "diverged", text, detail, ("logprobs", off.kind))


def told_by_lists(context: Context, logits: F32, text: str, detail: dict[str, Any]) -> Verdict:
    """Return the verdict for lists that agree. Its status is "not-compared" if a constant list
    would agree as well."""
    behind = np.nan_to_num(logits - logits.max(axis=1, keepdims=True), neginf=-LARGEST)
    # twice the limit, because a distance is a difference of two logits
    allowed = 2 * detail["allowed_relative"] * largest(logits)
    if why := why_nothing_is_told(behind, behind, allowed, "log-probability"):
        return context.verdict("logprobs", "not-compared", f"{why}: nothing was compared", detail)
    return context.verdict("logprobs", "agreed", text, detail)


def lengths(ends: Sequence[int], row: int) -> str:
    """Describe a prefix's length and the shorter prefixes that agree. Their lengths show where a
    window or a batch ends."""
    before = f"; prefixes of {ends[0]} to {ends[row - 1]} tokens agree" if row > 1 else ""
    before = f"; the prefix of length {ends[0]} agrees" if row == 1 else before
    return f"of {ends[row]} token{'s' * (ends[row] != 1)}{before}"


def whose(context: Context, ids: Sequence[int], listed: Listed, allowed: float) -> list[int]:
    """Return the prefix lengths after which the oracle would give this list. The engine may then
    have used another position's row, or not have read the rest of the prefix. The result is empty
    for a list that is short enough to match by chance, and if it would cost too many logits."""
    if len(listed.candidates) < ENOUGH or len(ids) * context.facts.n_vocab > MOST_LOGITS:
        return []
    batches = batches_behind(context, ids, range(1, len(ids) + 1))
    outcome = context.oracle.ask("evaluate", Request(batches=batches))
    each = np.concatenate(outcome.value.logits) if isinstance(outcome, Answered) else ()
    return [n for n, logits in enumerate(each, 1) if off_from(listed, logits, allowed) is None]


def honest_run_of(
    context: Context, batches: Sequence[Batch], listed: Sequence[Listed]
) -> F32 | None:
    """Return an honest run that explains these lists: with llama.cpp's conversions of activations,
    without conversions, or of another design. Return None if no run explains them."""
    noise = context.noise_on(batches)
    for _, run in honest_runs(context, batches):
        if first_off(listed, run, float(whole_run(noise, largest(run)).allowed)) is None:
            return run
    return None


def what_was_compared(listed: Sequence[Listed], logits: F32, allowed: float) -> dict[str, Any]:
    size = largest(logits) or 1.0
    spreads = [spread(each, row) for each, row in zip(listed, logits, strict=True)]
    return {
        "prefixes": len(listed),
        "candidates": [len(each.candidates) for each in listed],
        "unknown_texts": sum(each.unknown for each in listed),
        "shared_texts": sum(len(c.ids) > 1 for each in listed for c in each.candidates),
        "empty_lists": sum(not each.candidates for each in listed),
        "values_compared": sum(n for n, _ in spreads),
        "worst_relative_to_largest_logit": max(worst for _, worst in spreads) / size,
        "allowed_relative": allowed / size,
    }


def agreement(listed: Sequence[Listed], detail: dict[str, Any]) -> str:
    sizes = detail["candidates"]
    text = (
        f"{len(listed)} prefixes, {min(sizes)} to {max(sizes)} candidates each: differences within "
        f"{detail['worst_relative_to_largest_logit']:.1e} of the largest logit (allowed "
        f"{detail['allowed_relative']:.1e}), none missing"
    )
    if not detail["values_compared"]:
        text = (
            f"{len(listed)} prefixes: only ranks were compared, as no list has two "
            "comparable values"
        )
    return text


def sentence(off: Off) -> str:
    if off.kind == "missing":
        return (
            f"token {off.token} is not listed, and its logit is {off.expected:.3g} above "
            f"the last listed token's (allowed {off.allowed:.2g}); {off.wrong} tokens are missing"
        )
    if off.kind == "not finite":
        return f"{off.wrong} values are not finite; token {off.token} is {off.actual}"
    if off.kind == "order":
        return (
            f"token {off.token} with {off.actual:.7g} is listed after a token with "
            f"{off.expected:.7g}, and the likeliest must come first (allowed "
            f"{off.allowed:.2g})"
        )
    if off.kind == "twice":
        return (
            f"the text of token {off.token} is listed {off.actual:.0f} times, and only "
            f"{off.expected:.0f} tokens have it; {off.wrong} texts are listed too often"
        )
    # no log-probability is above 0, so the list may consist of logits
    shifted = " plus the constant that fits most of the list" if off.expected > 0 else ""
    return (
        f"token {off.token} is {off.actual:.7g}, expected {off.expected:.7g}{shifted} (allowed "
        f"{off.allowed:.2g}); {off.wrong} values are wrong"
    )
