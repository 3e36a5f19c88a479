"""Two lists of ids side by side, with the text of each token."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

AROUND = 3  # equal ids on either side of a difference; of the others, only the number is shown
DIFFERING = 8  # different places in a row
AROUND_TEXT = 16  # tokens on either side of a difference whose text is shown
MOST = 400  # ids of a side that are aligned


@dataclass(frozen=True, kw_only=True)
class SideOfText:
    ids: Sequence[Any]
    pieces: Sequence[str | None]
    count: int

    def at(self, i: int) -> tuple[Any, str]:
        piece = self.pieces[i] if i < len(self.pieces) else None
        return self.ids[i], "" if piece is None else piece


Line = dict[str, Any]  # kind: same, differs or skipped; at; expected, actual: (id, piece) or None


def alignment_of(detail: Mapping[str, Any]) -> dict[str, Any] | None:
    given = detail.get("sides")
    if given is None:
        return None
    expected, actual = (side_of(given[name]) for name in ("expected", "actual"))
    start = int(given["start"])
    generated = "way" not in detail  # after another generated token, the rest is another text
    found = [*lines(expected, actual, start, in_step=generated)]
    return {
        "lines": found,
        "input": text_or_empty(detail.get("input")),
        "start": start,
        "counts": (expected.count, actual.count),
        "texts": texts_of(expected, actual) if generated else None,
    }


def runs_of_ids(detail: Mapping[str, Any]) -> dict[str, Any] | None:
    """Align the ids of a `fuzz tokens` finding, which contains no token texts."""
    want, got = detail.get("expected"), detail.get("actual")
    if "sides" in detail or "way" not in detail or not isinstance(want, list):
        return None
    if not isinstance(got, list):
        return None
    sides = [SideOfText(ids=ids[:MOST], pieces=(), count=len(ids)) for ids in (want, got)]
    text = text_or_empty(detail.get("input"))
    found = [*lines(sides[0], sides[1], 0)]
    counts = (len(want), len(got))
    return {"lines": found, "input": text, "start": 0, "counts": counts, "texts": None}


def text_or_empty(text: Any) -> str:
    return "" if text is None else str(text)


def side_of(given: Mapping[str, Any]) -> SideOfText:
    return SideOfText(
        ids=given["ids"][:MOST], pieces=given["pieces"] or (), count=int(given["count"])
    )


def first_difference(expected: SideOfText, actual: SideOfText) -> int:
    pairs = enumerate(zip(expected.ids, actual.ids, strict=False))
    shorter = min(len(expected.ids), len(actual.ids))
    return next((i for i, (a, b) in pairs if a != b), shorter)


def texts_of(expected: SideOfText, actual: SideOfText) -> dict[str, str] | None:
    """Return the text before the first token that differs, and the text after it on both sides."""
    at = first_difference(expected, actual)
    if not expected.pieces or not actual.pieces:
        return None
    before = "".join(expected.at(i)[1] for i in range(max(0, at - AROUND_TEXT), at))
    behind = [
        "".join(side.at(i)[1] for i in range(at, min(len(side.ids), at + AROUND_TEXT)))
        for side in (expected, actual)
    ]
    return {"before": before, "expected": behind[0], "actual": behind[1]}


def steps(
    expected: SideOfText, actual: SideOfText, *, in_step: bool
) -> list[tuple[str, int, int, int, int]]:
    """Return steps like difflib's opcodes. If `in_step` is True, everything after the first
    difference is one replacement, because the texts have nothing in common there."""
    a, b = list(expected.ids), list(actual.ids)
    if not in_step:
        return list(SequenceMatcher(None, a, b, autojunk=False).get_opcodes())
    at = first_difference(expected, actual)
    found = [("equal", 0, at, 0, at), ("replace", at, len(a), at, len(b))]
    return [step for step in found if step[2] > step[1] or step[4] > step[3]]


def lines(
    expected: SideOfText, actual: SideOfText, start: int, *, in_step: bool = False
) -> Iterator[Line]:
    for tag, a, a_end, b, b_end in steps(expected, actual, in_step=in_step):
        if tag == "equal":
            yield from equal(expected, a, a_end, start, last=a_end == len(expected.ids))
            continue
        n = max(a_end - a, b_end - b)
        for i in range(n if n <= DIFFERING + AROUND else DIFFERING):
            yield {
                "kind": "differs",
                "at": start + a + i,
                "expected": expected.at(a + i) if a + i < a_end else None,
                "actual": actual.at(b + i) if b + i < b_end else None,
            }
        if n > DIFFERING + AROUND:
            what = "more step after it" if in_step else "more place that differs"
            yield {"kind": "skipped", "what": what, "count": n - DIFFERING}


def equal(side: SideOfText, first: int, end: int, start: int, *, last: bool) -> Iterator[Line]:
    head = [*range(first, min(end, first + AROUND))] if first else []
    tail = [] if last else [*range(max(first + len(head), end - AROUND), end)]
    left_out = end - first - len(head) - len(tail)
    if left_out <= AROUND:  # a line about left-out ids would need as much space
        head, tail, left_out = [*range(first, end)], [], 0
    for i in head:
        yield same(side, i, start)
    if left_out > 0:
        yield {"kind": "skipped", "what": "equal id", "count": left_out}
    for i in tail:
        yield same(side, i, start)


def same(side: SideOfText, i: int, start: int) -> Line:
    return {"kind": "same", "at": start + i, "expected": side.at(i), "actual": side.at(i)}
