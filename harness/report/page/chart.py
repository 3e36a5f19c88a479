"""Logits by position as plain SVG: the error of each position, the limit, and the margin of the
greedy token.

The scale is logarithmic. Each line is a single path, so that a chart of 512 positions takes only a
few kilobytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Any

from lockstep.harness.report.page.verdicts import count_words

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 200, 52, 24, 10
LEAST = 1e-12  # smaller values and zero are drawn at the bottom


@dataclass(frozen=True, kw_only=True)
class Chart:
    width: int
    height: int
    left: int
    base: float
    bars: str  # paths in SVG
    over: str  # paths of the bars beyond the limit
    margins: str
    limit: float | None  # its y coordinate
    ticks: Sequence[tuple[float, str]]
    labels: Sequence[tuple[float, str]]
    caption: str
    other: Mapping[str, Any] | None  # the first position with another token


def chart_of(detail: Mapping[str, Any]) -> Chart | None:
    given = detail.get("by_position")
    if not given:
        return None
    errors = [as_float(e) for e in given["error"]]
    margins = [as_float(m) for m in given.get("margin", ())]
    limit = as_float(detail.get("allowed_relative", 0.0))
    every = int(given.get("every", 1))
    low, high = decades([*errors, *margins, limit])
    base = HEIGHT - BOTTOM

    def y(value: float) -> float:
        share = (log10(min(max(value, 10.0**low), 10.0**high)) - low) / (high - low)
        return round(base - share * (base - TOP), 1)

    step = (WIDTH - LEFT - 8) / len(errors)
    bar = max(0.5, min(step * 0.7, 14.0))
    drawn = [(round(LEFT + (i + 0.5) * step, 1), y(e), e) for i, e in enumerate(errors)]
    dots = (f"M{LEFT + (i + 0.5) * step:.1f} {y(m)}h0" for i, m in enumerate(margins))
    return Chart(
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        base=base,
        bars=bars(((x, top) for x, top, e in drawn if not e > limit), bar, base),
        over=bars(((x, top) for x, top, e in drawn if e > limit), bar, base),
        margins="".join(dots),
        limit=y(limit) if limit > 0 else None,
        ticks=[(y(10.0**n), f"1e{n}") for n in range(low, high + 1, max(1, (high - low) // 5))],
        labels=positions(len(errors), every, step),
        caption=caption(errors, margins, limit, every, given),
        other=given.get("first_other"),
    )


def bars(tops: Any, width: float, base: float) -> str:
    return "".join(f"M{x - width / 2:.1f} {base}V{top}h{width:.1f}V{base}z" for x, top in tops)


def as_float(value: Any) -> float:
    """Return the value as a float. Strings such as "inf", which replace numbers that JSON lacks,
    are converted too."""
    return float(value)


def decades(values: Sequence[float]) -> tuple[int, int]:
    finite = [v for v in values if LEAST < v < 1e300] or [1.0]
    low, high = floor(log10(min(finite))), ceil(log10(max(finite)))
    return low, max(high, low + 1)


def positions(n: int, every: int, step: float) -> list[tuple[float, str]]:
    gap = max(1, -(-n // 8))
    return [(round(LEFT + (i + 0.5) * step, 1), str(i * every)) for i in range(0, n, gap)]


def caption(
    errors: Sequence[float],
    margins: Sequence[float],
    limit: float,
    every: int,
    given: Mapping[str, Any],
) -> str:
    worst = max(range(len(errors)), key=lambda i: errors[i])
    at = f"position {worst}" if every == 1 else f"positions {worst * every} and following"
    of = f"of the largest {given.get('what', 'logit')}"
    text = f"Largest error {errors[worst]:.2g} {of}, at {at}; "
    over = sum(e > limit for e in errors)
    text += f"allowed {limit:.2g}, exceeded at {over} of {len(errors)}."
    if margins:
        close = sum(m <= 2 * e for m, e in zip(margins, errors, strict=True))
        text += f" The greedy token's smallest margin is {min(margins):.2g}"
        text += f"; at {close} it is below twice the error." if close else "."
        other = int(given.get("other_choices", 0))
        text += f" The engines choose different tokens at {count_words(other, 'position')}."
    return text
