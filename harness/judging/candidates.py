"""Lists of a few likely tokens with log-probabilities, compared with whole rows of logits.

The values of a list may differ from logits by one constant: they may be normalised over the
vocabulary, over the list alone, or not at all. So three things are checked: distances between
values are right, no token above the end of the list is missing, and the likeliest tokens come
first. Several tokens may be shown as the same text. Such a text is right if one of its tokens fits.
"""

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import inf, isfinite, isnan, log, nan
from typing import Literal

import numpy as np

from lockstep.engine.ops.near import SMALLEST
from lockstep.engine.quants.base import F32
from lockstep.harness.judging.no_characters import shown_as
from lockstep.harness.judging.stored import half_step, looks_like
from lockstep.harness.judging.tolerances import log_softmax_roundings

FLOOR = log(SMALLEST)  # the probability in float32 is subnormal or zero below this logarithm
ROOM = 32  # bytes of llama-cpp-python's buffer for a token; it shows nothing of a longer one
COARSE = 6  # decimals or significant digits; an engine that writes more has not rounded for readers


@dataclass(frozen=True, kw_only=True)
class Candidate:
    ids: tuple[int, ...]  # the tokens that the candidate may be
    value: float


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A list of candidates. unknown: the number of candidates whose tokens are unknown."""

    candidates: tuple[Candidate, ...]
    unknown: int = 0


@dataclass(frozen=True, kw_only=True)
class Off:
    """The worst candidate of a list. expected: the value that the logits give, with the list's own
    constant. Other kinds have other meanings: for a missing token, how far its logit exceeds the
    logit of the last listed token; for a token out of order, the smallest value before it; for a
    token listed too often, the number of possible tokens."""

    kind: Literal["value", "not finite", "missing", "order", "twice"]
    token: int
    expected: float
    actual: float
    allowed: float
    wrong: int
    missing: tuple[int, ...] = ()  # all missing tokens, the likeliest first


def read_list(
    said: Sequence[tuple[int | bytes, float]], names: Mapping[bytes, tuple[int, ...]]
) -> Listed:
    """Return the list of an engine. names: the tokens for each text; not needed if tokens are
    ids."""
    found = [
        ((token,) if isinstance(token, int) else names.get(token, ()), value)
        for token, value in said
    ]
    known = tuple(Candidate(ids=ids, value=value) for ids, value in found if ids)
    return Listed(candidates=known, unknown=len(found) - len(known))


def names_of(
    pieces: Iterable[bytes], texts: Iterable[bytes], hidden: Container[int] = ()
) -> dict[bytes, tuple[int, ...]]:
    """Return the forms in which engines write tokens, with the tokens of each form. pieces: the
    bytes of each token; texts: the tokens as stored in the vocabulary; hidden: control tokens,
    which many engines do not show."""
    found: dict[bytes, list[int]] = defaultdict(list)
    for token, (piece, text) in enumerate(zip(pieces, texts, strict=True)):
        escaped = b"bytes:" + b"".join(b"\\x%02x" % byte for byte in piece)
        shown = shown_as(piece)
        kept = piece.decode("utf-8", "ignore").encode()
        # some engines decode each token alone, and lose its leading space
        names = {piece, text, escaped, *shown, kept, *(each.removeprefix(b" ") for each in shown)}
        if token in hidden or len(piece) > ROOM:
            names.add(b"")
        for name in names:
            found[name].append(token)
    return {name: tuple(ids) for name, ids in found.items()}


def off_from(listed: Listed, logits: F32, allowed: float) -> Off | None:
    """Return a candidate that is impossible if logits are off by at most `allowed`; None if all are
    possible."""
    return (
        not_finite(listed, logits)
        or off_in_value(listed, logits, allowed)
        or missing(listed, logits, allowed)
        or out_of_order(listed, logits, allowed)
        or listed_twice(listed)
    )


def not_finite(listed: Listed, logits: F32) -> Off | None:
    """Return a candidate whose value is NaN or infinity without reason. NaN is right if the token's
    logit is NaN. Minus infinity is always accepted here."""
    wrong = [
        c
        for c in listed.candidates
        if (isnan(c.value) or c.value == inf) and not np.isnan(logits[list(c.ids)]).any()
    ]
    return off("not finite", wrong[0], logits, 0.0, len(wrong)) if wrong else None


def off_in_value(listed: Listed, logits: F32, allowed: float) -> Off | None:
    sure, rest, impossible = sorted_out(listed, logits)
    largest = float(np.nanmax(logits))
    halves = half_units(c.value for c in listed.candidates)

    def tolerance(candidate: Candidate) -> float:
        distance = largest - min(float(logits[token]) for token in candidate.ids)
        rounded = halves[candidate.value] + log_softmax_roundings(candidate.value, distance)
        return allowed + rounded

    limit = np.array([tolerance(c) for c in sure])
    apart = np.array([c.value - float(logits[c.ids[0]]) for c in sure])
    low, high = (apart - limit).max(initial=-inf), (apart + limit).min(initial=inf)
    middle = float(np.median(apart)) if sure else 0.0
    if low > high:
        excess = np.abs(apart - middle) - limit
        worst = int(excess.argmax())
        n = max(1, int((excess > 0).sum()))
        return off("value", sure[worst], logits, float(limit[worst]), n, middle)
    for candidate in rest if sure else ():
        own = tolerance(candidate)
        ways = [candidate.value - float(logits[token]) for token in candidate.ids]
        if not any(low - own <= way <= high + own for way in ways):
            return off("value", candidate, logits, own, 1, middle)
    # the largest probability is at least 1 / (number of tokens)
    most = largest + FLOOR + log(len(logits)) + 2 * allowed
    for candidate in impossible:
        if float(np.nanmin(logits[list(candidate.ids)])) > most:
            return off("value", candidate, logits, allowed, 1, middle)
    return None


def sorted_out(
    listed: Listed, logits: F32
) -> tuple[list[Candidate], list[Candidate], list[Candidate]]:
    """Return the candidates in three lists: candidates of one token, candidates of several tokens,
    and candidates whose probability is below float32's range."""
    finite = np.isfinite(logits)
    sure: list[Candidate] = []
    rest: list[Candidate] = []
    impossible: list[Candidate] = []
    for c in listed.candidates:
        if isnan(c.value) or c.value == inf:
            continue
        if c.value <= FLOOR:
            impossible.append(c)
        elif finite[list(c.ids)].all():
            (sure if len(c.ids) == 1 else rest).append(c)
    return sure, rest, impossible


def missing(listed: Listed, logits: F32, allowed: float) -> Off | None:
    """Return a missing token. No unlisted token may be likelier than a listed one by more than the
    noise of two runs."""
    sure, rest, _ = sorted_out(listed, logits)
    if not sure and not rest:
        return None
    end = min(max(float(logits[token]) for token in c.ids) for c in (*sure, *rest))
    above = np.flatnonzero(logits > end + 2 * allowed)
    shown = {token for c in listed.candidates for token in c.ids}
    left = sorted((int(t) for t in above if int(t) not in shown), key=lambda t: -logits[t])
    if len(left) <= listed.unknown:
        return None
    first = left[0]
    return Off(
        kind="missing",
        token=first,
        expected=float(logits[first]) - end,
        actual=0.0,
        allowed=2 * allowed,
        wrong=len(left),
        missing=tuple(left),
    )


def out_of_order(listed: Listed, logits: F32, allowed: float) -> Off | None:
    """Return a candidate that is likelier than one before it, by more than the noise of two runs.

    The list's own values are compared, because the engine may have sorted the list in a different
    noisy run. Texts of several tokens are ignored: they stand at the place of any of their tokens.
    """
    sure, _, _ = sorted_out(listed, logits)
    values = np.array([c.value for c in sure])
    before = np.minimum.accumulate(values)
    above = values - before
    wrong = int((above > 2 * allowed).sum())
    if not wrong:
        return None
    worst = int(above.argmax())
    return Off(
        kind="order",
        token=sure[worst].ids[0],
        expected=float(before[worst]),
        actual=float(values[worst]),
        allowed=2 * allowed,
        wrong=wrong,
    )


def listed_twice(listed: Listed) -> Off | None:
    """Return a token that is listed too often. A text may occur once for each of its tokens."""
    times = Counter(c.ids for c in listed.candidates)
    found = [ids for ids, n in times.items() if n > len(ids)]
    if not found:
        return None
    return Off(
        kind="twice",
        token=found[0][0],
        expected=float(len(found[0])),
        actual=float(times[found[0]]),
        allowed=0.0,
        wrong=len(found),
    )


def off(
    kind: Literal["value", "not finite"],
    candidate: Candidate,
    logits: F32,
    allowed: float,
    wrong: int,
    constant: float = 0.0,
) -> Off:
    token = min(candidate.ids, key=lambda t: abs(float(logits[t]) + constant - candidate.value))
    return Off(
        kind=kind,
        token=token,
        expected=float(logits[token]) + constant,
        actual=candidate.value,
        allowed=allowed,
        wrong=wrong,
    )


def half_units(values: Iterable[float]) -> dict[float, float]:
    """Return the rounding error of each value of the list, if all values look rounded: to decimals,
    or to half precision. Otherwise return 0."""
    finite = [value for value in values if isfinite(value)]
    decimal = half_units_of_decimals(finite)
    whole = all(value == round(value) for value in finite)  # a stub may answer with whole numbers
    kind = "" if whole else looks_like([np.array(finite)])
    steps = half_step(np.array(finite), kind).tolist()
    return {value: max(decimal[value], step) for value, step in zip(finite, steps, strict=True)}


def half_units_of_decimals(values: Iterable[float]) -> dict[float, float]:
    """Return half a unit of the last decimal place, or of the last significant digit, if all values
    were rounded for display. Otherwise return 0.

    A float32 value without rounding nearly always has more than six decimal places and digits. At
    least one decimal place and three digits are assumed, because no engine rounds to fewer: only a
    stub answers with whole numbers.
    """
    written = {value: Decimal(repr(value)).normalize() for value in values}
    places = max((-int(d.as_tuple().exponent) for d in written.values()), default=COARSE + 1)
    digits = max((len(d.as_tuple().digits) for d in written.values()), default=COARSE + 1)
    by_place = 0.5 * 10.0 ** -max(places, 1) if places <= COARSE else 0.0
    if digits > COARSE:
        return dict.fromkeys(written, by_place)
    return {
        value: max(by_place, 0.5 * 10.0 ** (d.adjusted() + 1 - max(digits, 3)) if value else 0.0)
        for value, d in written.items()
    }


def factor(lists: Iterable[Listed], logits: Iterable[F32]) -> float:
    """Return the factor between distances of logits and distances of values that fits all lists
    best; NaN if there are none."""
    both = own = 0.0
    for listed, row in zip(lists, logits, strict=True):
        sure, _, _ = sorted_out(listed, row)
        values, theirs = (
            np.array(numbers) - (np.mean(numbers) if numbers else 0.0)
            for numbers in ([c.value for c in sure], [float(row[c.ids[0]]) for c in sure])
        )
        both += float(values @ theirs)
        own += float(theirs @ theirs)
    return both / own if own else nan


def squares(listed: Listed, logits: F32) -> float:
    """Return the smallest sum of squared differences from these logits, for the best constant;
    infinity for fewer than two values."""
    sure, _, _ = sorted_out(listed, logits)
    apart = np.array([c.value - float(logits[c.ids[0]]) for c in sure])
    if len(apart) < 2 or not np.isfinite(apart).all():
        return inf
    return float(((apart - apart.mean()) ** 2).sum())


def spread(listed: Listed, logits: F32) -> tuple[int, float]:
    """Return the number of compared values, and half of the range of their errors; (0, 0.0) for
    fewer than two values."""
    sure, _, _ = sorted_out(listed, logits)
    apart = [c.value - float(logits[c.ids[0]]) for c in sure]
    return (len(apart), (max(apart) - min(apart)) / 2) if len(apart) > 1 else (0, 0.0)
