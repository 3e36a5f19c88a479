"""Answers that differ from the right engine's, each with the question, the given and the expected
answer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.harness.adapters.parts.sampled_lists import SampledList
from lockstep.harness.diagnosis.asking import AskedQuestion
from lockstep.harness.diagnosis.compared import Compared
from lockstep.harness.diagnosis.questions import (
    Continued,
    Decoded,
    Embedded,
    Greedy,
    Header,
    Ids,
    InTurn,
    RunQuestion,
    Written,
)
from lockstep.harness.diagnosis.sampled import SampledLists, flatten
from lockstep.harness.suites.metadata import readable

TEXT_BYTES = 60  # bytes of a text that are shown
IDS_BEFORE, IDS_SHOWN = 2, 8  # ids before the first different id, and ids in all
Pair = tuple[str, str, str]  # the question, the subject's answer, the right answer


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A row of an answer that differs: the subject's value and the expected value. Both values are
    empty for questions whose rows are not described."""

    asked: str
    got: str
    expected: str


def differences_in(one: AskedQuestion, answer: Any, right: Compared) -> Iterator[Difference]:
    """Yield the rows of one question that differ, in order.

    `answer` is the right engine's answer, as `MistakeQuestion.of` returns it.
    """
    describe = DESCRIPTIONS.get(type(one.question))
    rows = np.flatnonzero(~right.same).tolist()
    if describe is None:
        rows = rows[:1]
    for row in rows[:1] if type(one.question) in IN_SEQUENCE else rows:
        asked, got, expected = (
            describe(one.question, one.said, answer, row)
            if describe
            else (one.question.words, "", "")
        )
        yield Difference(asked=asked, got=got, expected=expected)


def describe_key(question: Header, said: Any, answer: Any, row: int) -> Pair:
    if question.utf8_only:
        answer, _ = readable(answer, said)
    keys = sorted(answer.metadata)
    if row < len(keys):
        key = keys[row]
        own, right = (shorten(summary.metadata.get(key)) for summary in (said, answer))
        return (f"key {key}", own, right)
    name = answer.tensors[row - len(keys)].name
    own, right = (
        next((str(t) for t in found.tensors if t.name == name), "none") for found in (said, answer)
    )
    return (f"tensor {name}", own, right)


def describe_ids(question: Ids, said: Any, answer: Any, row: int) -> Pair:
    return (f"text {shorten(question.texts[row])}", *around_difference(said[row], answer[row]))


def describe_text(question: Written, said: Any, answer: Any, row: int) -> Pair:
    ids = list(question.rows[row])
    return (f"ids {shorten(ids)}", shorten(said[row]), shorten(answer[row]))


def describe_weight(question: Decoded, said: Any, answer: Any, row: int) -> Pair:
    where = f"weight {row} of {question.words}"
    return (where, f"{said[row]:.9g}", f"{answer[row]:.9g}")


def describe_row(question: RunQuestion, said: Any, answer: Any, row: int) -> Pair:
    own, right = question.rows(said), question.rows(answer)
    where = f"row {row} of {question.words}"
    if own.shape != right.shape:
        return (where, f"shape {own.shape}", f"shape {right.shape}")
    with np.errstate(all="ignore"):
        off = np.abs(own[row].astype(np.float64) - right[row])
    at = int(np.argmax(np.where(np.isnan(off), np.inf, off)))
    return (f"{where}, element {at}", f"{own[row, at]:.6g}", f"{right[row, at]:.6g}")


def describe_token(question: Greedy, said: Any, answer: Any, row: int) -> Pair:
    return (f"token {row} of {question.words}", str(said[row]), str(answer[0][row]))


def describe_next_token(question: InTurn, said: Any, answer: Any, row: int) -> Pair:
    n = len(question.prompts[row + 1])
    where = f"the token after prompt {row + 1} of {question.words} ({n} tokens)"
    return (where, str(said[row + 1]), str(answer[row + 1][0][0]))


def describe_continuation(question: Continued, said: Any, answer: Any, row: int) -> Pair:
    written = b"".join(question.pieces[token] for token in answer[0])
    return (question.words, shorten(said), shorten(written))


def describe_list(question: SampledLists, said: Any, answer: Any, row: int) -> Pair:
    own, right = (flatten(found)[row] for found in (said, answer))
    stages = len(question.request.chain)
    where = f"{question.stage_of(row)} on row {row // stages} of {question.words}"
    return where, shorten_list(own, own, right), shorten_list(right, own, right)


def shorten_list(shown: SampledList, own: SampledList, right: SampledList) -> str:
    """Describe the shown list in the property that differs: its candidates, its selected token, or
    its logits."""
    if sorted(own.ids.tolist()) != sorted(right.ids.tolist()):
        return f"{len(shown.ids)} candidates {shorten(shown.ids.tolist())}"
    if own.selected != right.selected and np.array_equal(own.logits, right.logits):
        return f"token {shown.selected}"
    logits = shown.logits[np.argsort(shown.ids, kind="stable")]
    return f"logits {shorten([float(f'{x:.4g}') for x in logits.tolist()])}"


DESCRIPTIONS: Mapping[type[Any], Callable[[Any, Any, Any, int], Pair]] = {
    Header: describe_key,
    Ids: describe_ids,
    Written: describe_text,
    Decoded: describe_weight,
    RunQuestion: describe_row,
    Embedded: describe_row,
    Greedy: describe_token,
    InTurn: describe_next_token,
    Continued: describe_continuation,
    SampledLists: describe_list,
}
# in these questions, later rows depend on earlier rows, so only the first different row counts
IN_SEQUENCE = {RunQuestion, Embedded, Decoded, Greedy, Continued}


def shorten(value: Any) -> str:
    """Return the value as Python writes it. The middle of a long text is cut out."""
    text = repr(value)
    half = TEXT_BYTES // 2
    return text if len(text) <= TEXT_BYTES else f"{text[:half]}...{text[-half:]}"


def around_difference(own: Sequence[int], right: Sequence[int]) -> tuple[str, str]:
    """Return the parts of both lists of ids around their first difference."""
    pairs = zip(own, right, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(own), len(right)))
    start = max(0, same - IDS_BEFORE)

    def part(ids: Sequence[int]) -> str:
        some = ", ".join(map(str, ids[start : start + IDS_SHOWN]))
        before = "..., " if start else ""
        after = ", ..." if len(ids) > start + IDS_SHOWN else ""
        return f"[{before}{some}{after}]"

    return part(own), part(right)
