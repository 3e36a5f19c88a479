"""Do our reader, gguf-py and llama.cpp read the same keys, values and tensor table?"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from math import inf
from typing import Any

from lockstep.engine.gguf.fields import Value
from lockstep.engine.gguf.types import TYPES
from lockstep.harness.context.runner import Session
from lockstep.harness.context.suite import Context, NoAnswer, Suite
from lockstep.harness.known import entries
from lockstep.harness.processes.ahead import Awaited
from lockstep.harness.records import (
    EXACT,
    FileSummary,
    Outcome,
    Rejected,
    TensorSummary,
    TimedOut,
    Verdict,
)
from lockstep.harness.report.text import cut

AT_MOST, LONGEST = 20, 2000  # differences in one verdict; characters of all places together
MAX_ENTRIES = 1 << 20  # entries of an array; as many tokens fit into a message (wire.MessageLimits)
BYTES = re.compile("[\udc80-\udcff]")
ABSENT = ("absent", None)  # stands for the type and value of a key that one side lacks
# gguf-py learns a tensor type some releases after llama.cpp: 0.19 lacks Q2_0
NO_SUCH_TYPE = re.compile(
    r": ValueError: (?:np\.uint32\()?(\d+)\)? is not a valid GGMLQuantizationType$"
)


class Metadata(Suite, name="metadata"):
    order = 10

    def begin(self, context: Context) -> None:
        check_arrays(context.file.metadata)
        session = context.runner.open("gguf-py", context.model, EXACT)
        context.begun[self.name] = ReadByGgufPy(session)

    def run(self, context: Context) -> Iterator[Verdict]:
        check_arrays(context.file.metadata)
        oracle, subject = context.ask_both("metadata")
        context.read |= {context.oracle: oracle, context.subject: subject}
        left_out = ""
        if context.subject_info.utf8_only:
            theirs, n = readable(oracle, subject)
            left_out = f"; {n} texts that are not UTF-8 were not compared" if n else ""
        else:
            theirs = oracle
        verdict = compare_summaries(context, context.subject.name, theirs, subject)
        yield replace(verdict, summary=verdict.summary + left_out)
        if self.name not in context.begun:
            self.begin(context)
        reading = context.begun[self.name]
        assert isinstance(reading, ReadByGgufPy)
        reading.expected = oracle

    def finish(self, context: Context) -> Iterator[Verdict]:
        """Wait for gguf-py, and yield the verdict. For a vocabulary of 262,144 tokens it needs many
        seconds."""
        if self.name not in context.begun:
            return  # no engine could start, and another verdict says so
        with closing(context.begun.pop(self.name)) as reading:
            assert isinstance(reading, ReadByGgufPy)
            oracle = reading.expected
            if oracle is None:
                return  # another verdict says so
            context.progress("waiting for gguf-py to read the file")
            outcome = reading.outcome()
            lacking = type_that_it_lacks(outcome, oracle)
            if lacking:
                text = f"gguf-py does not know tensor type {lacking}, so its reading was not "
                detail = {"reader": "gguf-py", "type": lacking}
                yield context.verdict("metadata", "excused", f"{text}compared", detail)
            else:
                answer = context.answer(reading.session, "metadata", outcome)
                yield compare_summaries(context, "gguf-py", oracle, answer)


def check_arrays(metadata: Mapping[str, Value]) -> None:
    """Raise NoAnswer for an array that is too long for three readers to show within minutes."""
    for key, value in metadata.items():
        if value.element is not None and len(value.data) > MAX_ENTRIES:
            text = (
                f"{key} has {len(value.data):,} entries, and an answer to metadata holds at most "
            )
            raise NoAnswer("not-compared", f"{text}{MAX_ENTRIES:,}", {})


class ReadByGgufPy:
    """gguf-py as a parallel reader. expected: the oracle's reading."""

    expected: FileSummary | None = None

    def __init__(self, session: Session) -> None:
        self.session = session
        session.start()
        self.awaited = Awaited(lambda: session.ask("metadata"))

    def outcome(self) -> Outcome:
        """Return gguf-py's answer. If it timed out while other engines ran, it is asked once more,
        alone."""
        outcome = self.awaited.result()
        return self.session.ask("metadata") if isinstance(outcome, TimedOut) else outcome

    def close(self) -> None:
        self.session.close()


def type_that_it_lacks(outcome: Outcome, oracle: FileSummary) -> str:
    """Return the tensor type that gguf-py does not know and refuses; "" if there is none."""
    refusal = isinstance(outcome, Rejected) and NO_SUCH_TYPE.search(outcome.message)
    kind = TYPES.get(int(refusal[1])) if refusal else None
    return kind.name if kind and kind.name in {t.type for t in oracle.tensors} else ""


def compare_summaries(
    context: Context, reader: str, oracle: FileSummary, other: FileSummary
) -> Verdict:
    oracle, n_ended = as_far_as_a_nul(oracle, other)
    found = differences(oracle, other)
    n = f"{len(oracle.metadata)} keys"
    n += f" and {len(oracle.tensors)} tensors" if "tensors" not in other.unknown else ""
    if not found:
        text = f"{reader} and the oracle agree on {n}"
        text += f"; {reader} does not show {', '.join(other.unknown)}" if other.unknown else ""
        text += f"; {n_ended} texts were compared up to a NUL, which ends them in C" * bool(n_ended)
        return context.verdict("metadata", "agreed", text)
    detail: dict[str, Any] = {"reader": reader, "total": len(found)}
    detail["differences"] = found[:AT_MOST]
    detail["where"] = ", ".join(each["where"] for each in found)[:LONGEST]
    text = f"{reader} and the oracle read the file differently: {found[0]['text']}"
    known = known_differences(reader)
    if all(each["kind"] in known for each in found):
        detail["known"] = sorted({known[each["kind"]] for each in found})
        text += f"; known: {', '.join(detail['known'])}"
        return context.verdict("metadata", "excused", text, detail)
    key = ("metadata", found[0]["what"], reader)
    return context.verdict("metadata", "diverged", text, detail, key)


def known_differences(reader: str) -> dict[str, str]:
    """Return the ids of the [[gguf]] entries of harness/known, by kind of difference."""
    rows = (row for row in entries("gguf") if row["component"] == reader)
    return {row["kind"]: row["id"] for row in rows if row["symptom"] == "value"}


def differences(oracle: FileSummary, other: FileSummary) -> list[dict[str, Any]]:
    """List the differences, each with a short kind, the place, a sentence, both values as text, and
    the kind in harness/known if the difference is known. Values that the other engine does not show
    are omitted."""
    found = fields(("version", "alignment"), oracle, other)
    for key in {**oracle.metadata, **other.metadata}:
        if not same_key(key, oracle, other):
            place = where_they_part(key, *values_of(key, oracle, other))
            kind = oracle.metadata[key][0] if key in oracle.metadata else ""
            found.append(entry("key", *place, name=key, type_=kind))
    # The sizes of keys move the data section, so it is compared after the keys. Without tensors
    # there is no data, and no rule says where it would begin.
    if oracle.tensors or other.tensors:
        found += fields(("data_offset",), oracle, other)
    if "tensors" in other.unknown:
        return found
    ours = {t.name: t for t in other.tensors}
    theirs = {t.name: t for t in oracle.tensors}
    for name in {**theirs, **ours}:
        one, another = theirs.get(name), ours.get(name)
        if one != another:
            only_size = one and another and replace(one, n_bytes=another.n_bytes) == another
            kind = f"rows {one.type}" if one and only_size else ""
            found.append(entry("tensor", f"tensor {name!r}", *rows_apart(one, another), kind))
    if not found and list(ours) != list(theirs):
        found.append(entry("order", "order of the tensors", list(theirs)[:3], list(ours)[:3]))
    return found


def rows_apart(one: TensorSummary | None, another: TensorSummary | None) -> tuple[Any, Any]:
    """Return the columns in which two rows of the tensor table differ. If one row is missing,
    return all columns of the other row."""
    a, b = (asdict(row) if row else {} for row in (one, another))
    if not a or not b:
        return a or ABSENT, b or ABSENT
    apart = [key for key in a if a[key] != b[key]]
    return {key: a[key] for key in apart}, {key: b[key] for key in apart}


def values_of(key: str, oracle: FileSummary, other: FileSummary) -> tuple[Any, Any]:
    """Return both values of a key, in a comparable form."""
    a, b = oracle.metadata.get(key, ABSENT), other.metadata.get(key, ABSENT)
    if values_alone(a, b, other):
        a, b = (a[0], with_infinities_as_texts(a[1])), (b[0], with_infinities_as_texts(b[1]))
    return a, b


def same_key(key: str, oracle: FileSummary, other: FileSummary) -> bool:
    """Return True if both engines have the same value for the key. The types must be equal too if
    the other engine shows types."""
    a, b = values_of(key, oracle, other)
    return same(a[1:], b[1:]) if values_alone(a, b, other) else same(a, b)


def values_alone(a: Any, b: Any, other: FileSummary) -> bool:
    return "types" in other.unknown and ABSENT not in (a, b)


def readable(oracle: FileSummary, other: FileSummary) -> tuple[FileSummary, int]:
    """Return the oracle's values, in which the other engine's texts replace texts that are not
    UTF-8. Many languages cannot represent such texts. Also return the number of replaced texts."""
    return with_theirs(oracle, other, lambda text, said: holds_bytes(text) and type(said) is str)


def as_far_as_a_nul(oracle: FileSummary, other: FileSummary) -> tuple[FileSummary, int]:
    """Return the oracle's values, in which the other engine's texts replace texts that are equal up
    to a NUL. gguf_get_val_str and gguf_get_arr_str end a text at a NUL, but a GGUF text has a
    length. Also return the number of replaced texts."""
    return with_theirs(oracle, other, ends_at_a_nul)


def with_theirs(
    oracle: FileSummary, other: FileSummary, is_one: Callable[[Any, Any], bool]
) -> tuple[FileSummary, int]:
    """Return the oracle's values, in which the other engine's texts replace the texts for which
    `is_one` is True. Also return the number of replaced texts."""
    keys, n = {}, 0
    for key, (kind, value) in oracle.metadata.items():
        theirs = other.metadata.get(key, ABSENT)[1]
        both = type(value) is list and type(theirs) is list and len(value) == len(theirs)
        pairs = [*zip(value, theirs, strict=True)] if both else [(value, theirs)]
        such = [is_one(*pair) for pair in pairs]
        held = [pair[so] for so, pair in zip(such, pairs, strict=True)]
        keys[key] = (kind, held if both else held[0])
        n += sum(such)
    return replace(oracle, metadata=keys), n


def holds_bytes(value: Any) -> bool:
    """Return True for a text with bytes that are not UTF-8. Our records keep such bytes as
    surrogates."""
    return type(value) is str and not value.isascii() and bool(BYTES.search(value))


def ends_at_a_nul(text: Any, whole: Any) -> bool:
    return type(text) is type(whole) is str and "\0" in whole and whole.split("\0", 1)[0] == text


def with_infinities_as_texts(value: Any) -> Any:
    """Replace infinities by their JSON texts, because without a type they are ambiguous."""
    if type(value) is list:
        return [*map(with_infinities_as_texts, value)]
    return str(value) if value in (inf, -inf) else value


def same(a: Any, b: Any) -> bool:
    """Compare two values and their types, because in Python True equals 1. NaN is a text here. The
    sign of a zero is ignored, because some languages' JSON loses it."""
    return bool(a == b) and truths(a) == truths(b)


def truths(value: Any) -> list[bool]:
    """Return True for each value of a key that is a bool, and False for each other value."""
    held = value[-1] if type(value) is tuple else value
    return [type(each) is bool for each in (held if type(held) is list else [held])]


def fields(names: Sequence[str], oracle: FileSummary, other: FileSummary) -> list[dict[str, Any]]:
    pairs = ((name, getattr(oracle, name), getattr(other, name)) for name in names)
    return [entry(name, name, a, b) for name, a, b in pairs if a != b and name not in other.unknown]


def where_they_part(key: str, a: tuple[str, Any], b: tuple[str, Any]) -> tuple[str, Any, Any]:
    """Return a description of the place, and both values. For arrays of equal length, they are the
    first elements that differ."""
    pair = a[1], b[1]
    lists = all(type(value) is list for value in pair) and len(pair[0]) == len(pair[1])
    if not lists or same(*pair):
        return f"key {key!r}", a, b
    at = next(i for i, (x, y) in enumerate(zip(*pair, strict=True)) if not same(x, y))
    return f"key {key!r}, element {at}", pair[0][at], pair[1][at]


def entry(
    what: str,
    where: str,
    expected: Any,
    actual: Any,
    kind: str = "",
    *,
    name: str = "",
    type_: str = "",
) -> dict[str, Any]:
    """Return the facts of a difference. name, type_: the name and the type of the key, if a key
    differs."""
    a, b = ("absent" if value is ABSENT else cut(repr(value), 200) for value in (expected, actual))
    text = f"{where}: expected {a}, got {b}"
    return {
        "what": what,
        "where": where,
        "text": text,
        "expected": a,
        "actual": b,
        "kind": kind,
        "name": name,
        "type": type_,
        "ascii": not (type(expected) is str and not expected.isascii()),
    }
