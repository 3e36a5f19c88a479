"""Comparison of decoded weights. Both engines must decode the same values from the file, bit for
bit."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.gguf.split_files import parts_of
from lockstep.engine.gguf.types import type_by_name
from lockstep.harness.adapters.reference import listing_of
from lockstep.harness.asking.facts import ModelFacts
from lockstep.harness.context.runner import Session
from lockstep.harness.context.suite import Context, NoAnswer, Suite
from lockstep.harness.judging.compare import (
    bits,
    in_other_byte_order,
    mismatch_between,
    same_bits,
)
from lockstep.harness.records import FileSummary, TensorSummary, Unanswerable, Verdict
from lockstep.harness.suites.parts.small_scales import BLOCKS, with_small_scales

BROKEN = ("crashed", "timed-out")
# weights that are compared at a time: whole blocks of every type, small enough for the cache
CHUNK = 1 << 20


class Dequant(Suite, name="dequant"):
    order = 30

    def inapplicable(self, facts: ModelFacts) -> str:
        return "" if facts.n_tensors else "the file holds no tensors"

    def run(self, context: Context) -> Iterator[Verdict]:
        """Yield verdicts on every tensor of the oracle's file, whatever tensors the engines
        list."""
        pair = FilePair.of(context)
        agreed: dict[str, list[int]] = {}
        names: dict[str, list[str]] = {}  # by type: the names of the tensors
        broken: set[str] = set()  # types that made an engine crash; each is asked once
        tensors = pair.oracle.held
        for i, tensor in enumerate(tensors.values()):
            context.progress(f"weights {i + 1}/{len(tensors)}: {tensor.name}")
            if tensor.type in broken:
                text = (
                    f"{tensor.name}: not asked, because the engine did not decode weights "
                    f"of {tensor.type} before"
                )
                key = ("dequant", "not asked", tensor.type)
                yield context.verdict("dequant", "not-compared", text, {}, key)
                continue
            found = pair.verdict_of(tensor)
            if found is not None:
                broken |= {tensor.type} if found.status in BROKEN else set()
                yield found
            else:
                kind = kinds(tensor, pair.subject.held[tensor.name])
                agreed.setdefault(kind, []).append(prod(tensor.ne))
                names.setdefault(kind, []).append(tensor.name)
        for kind, sizes in sorted(agreed.items()):
            if (wrong := pair.wrong_if_small(names[kind][0])) is not None:
                yield wrong
            text = f"{kind}: {sum(sizes):,} weights of {len(sizes)} tensors"
            if pair.told.isdisjoint(names[kind]):
                text += " are all zero or not finite, so their decoding was not compared"
                yield context.verdict("dequant", "not-compared", text)
            else:
                yield context.verdict("dequant", "agreed", f"{text} agree bit for bit")
        if odd := pair.odd:
            worst = ", ".join(f"{n:,} of {name}" for name, n in odd.most_common(3))
            worst += f" and {len(odd) - 3} more tensors" if len(odd) > 3 else ""
            text = f"weights that are NaN or infinite in both engines: {worst}"
            yield context.verdict("dequant", "excused", text, {"not_finite": dict(odd)})


@dataclass(frozen=True, kw_only=True)
class Side:
    """One engine with its file, the tensors that the engine lists, and the tensors that our own
    reader finds."""

    session: Session
    # by tensor: its file, and the offset of that file's data section
    places: Mapping[str, tuple[Path, int]]
    listed: Mapping[str, TensorSummary]
    held: Mapping[str, TensorSummary]

    @classmethod
    def of(cls, context: Context, session: Session, held: Mapping[Path, FileSummary]) -> "Side":
        first, *others = held.values()
        said = context.read.get(session) or read_by(context, session) or first
        if {"tensors", "data_offset"} & {*said.unknown}:
            said = first
        # engines list the tensors of the first file of a split model; for the other files, the list
        # is ours
        listed = dict(zip(held, (said, *others), strict=True))
        return cls(
            session=session,
            places={
                t.name: (part, summary.data_offset)
                for part, summary in listed.items()
                for t in summary.tensors
            },
            listed={t.name: t for summary in listed.values() for t in summary.tensors},
            held={t.name: t for summary in (first, *others) for t in summary.tensors},
        )

    def lacks(self, name: str) -> str:
        """Return why the tensor cannot be decoded as stored; "" if it can."""
        if name not in self.listed:
            return f"{self.session.name} does not list this tensor"
        said, held = form(self.listed[name]), form(self.held[name])
        return "" if said == held else f"{self.session.name} lists {said}, the file holds {held}"

    def blocks(self, name: str, start: int, stop: int) -> NDArray[np.uint8]:
        """Return some whole blocks, read from the place in the file that the engine gives."""
        tensor = self.listed[name]
        kind = type_by_name(tensor.type)
        at, end = (weight // kind.block * kind.bytes for weight in (start, stop))
        path, data_offset = self.places[name]
        return np.fromfile(path, np.uint8, count=end - at, offset=data_offset + tensor.offset + at)

    def decode(self, context: Context, name: str, start: int, stop: int) -> NDArray[np.float32]:
        raw, kind = self.blocks(name, start, stop), self.listed[name].type
        values: NDArray[np.float32] = context.ask(self.session, "dequantize", kind, raw)
        return values

    def block_of(self, name: str, at: int, first: int, values: Any) -> dict[str, Any]:
        """Return the bytes of the weight's block, and the engine's decoded values. values: the
        values of all weights from `first` on."""
        kind = type_by_name(self.listed[name].type)
        start = at // kind.block * kind.block
        raw = self.blocks(name, start, start + kind.block)
        shown = values[start - first : start - first + kind.block]
        row = {"type": self.listed[name].type, "hex": raw.tobytes().hex()}
        return row | {"weight": at - start, "values": [float(f"{v:.6g}") for v in shown]}


def read_by(context: Context, session: Session) -> FileSummary | None:
    """Return the engine's own summary of the file; None if the engine gives no summary. Lockstep
    then uses the tensors that our own reader found."""
    outcome = session.ask("metadata")
    if isinstance(outcome, Unanswerable) and outcome.declared:
        return None
    found: FileSummary = context.answer(session, "metadata", outcome)
    return found


def held_by(path: Path) -> dict[Path, FileSummary]:
    """Return our own reader's summary of each part of the model, by path."""
    found = {}
    for part in parts_of(path):
        with GgufFile.open(part) as file:
            found[part] = listing_of(file)
    return found


def kinds(expected: TensorSummary, actual: TensorSummary) -> str:
    """Return the tensor's type, or both types if the files have different types, as a model and its
    F32 twin do."""
    return expected.type if expected.type == actual.type else f"{expected.type} as {actual.type}"


def form(tensor: TensorSummary) -> str:
    return f"{tensor.type} {tensor.ne} of {tensor.n_bytes} bytes"


@dataclass(frozen=True, kw_only=True)
class FilePair:
    """Both engines with their files, and the tensors that both decode. Verdicts with the same key
    have the same cause."""

    context: Context
    oracle: Side
    subject: Side
    # by tensor: how many weights are NaN or infinite
    odd: Counter[str] = field(default_factory=Counter)
    # tensors with at least one finite weight other than zero
    told: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, context: Context) -> "FilePair":
        held = {path: held_by(path) for path in {context.model, context.subject_model}}
        return cls(
            context=context,
            oracle=Side.of(context, context.oracle, held[context.model]),
            subject=Side.of(context, context.subject, held[context.subject_model]),
        )

    def verdict_of(self, tensor: TensorSummary) -> Verdict | None:
        """Return the verdict on a tensor; None if both engines decode the same values."""
        verdict, detail = self.context.verdict, {"tensor": tensor.name}
        kind, reason = self.why_not(tensor)
        if kind:
            text = f"{tensor.name}: {reason}"
            return verdict("dequant", "not-compared", text, detail, ("dequant", kind))
        try:
            return self.compare(tensor)
        except NoAnswer as error:
            if error.status == "not-applicable":
                raise
            text, key = f"{tensor.name}: {error.summary}", ("dequant", error.status, tensor.type)
            return verdict("dequant", error.status, text, error.detail | detail, key)

    def why_not(self, tensor: TensorSummary) -> tuple[str, str]:
        """Return the kind and the reason why a tensor is not compared, or two empty strings."""
        other = self.subject.held.get(tensor.name)
        if other is None:
            return "absent", "the other file has no such tensor"
        if other.ne != tensor.ne:
            return "shape", f"the other file has {form(other)}, and this file {form(tensor)}"
        if not tensor.n_bytes:
            return "empty", "the tensor holds no weights"
        lacks = self.oracle.lacks(tensor.name) or self.subject.lacks(tensor.name)
        return ("table", lacks) if lacks else ("", "")

    def compare(self, tensor: TensorSummary) -> Verdict | None:
        n_weights, name = prod(tensor.ne), tensor.name
        for start in range(0, n_weights, CHUNK):
            stop = min(start + CHUNK, n_weights)
            sides = {"oracle": self.oracle, "subject": self.subject}
            values = {k: s.decode(self.context, name, start, stop) for k, s in sides.items()}
            expected, actual = values.values()
            if not same_bits(expected, actual):
                found = divergence(self.context, tensor, start, expected, actual)
                at = found.detail["row"] * row_length(tensor) + found.detail["column"]
                rows = {k: s.block_of(name, at, start, values[k]) for k, s in sides.items()}
                return replace(found, detail={**found.detail, "decoded": rows})
            if not_finite := int(np.count_nonzero(~np.isfinite(expected))):
                self.odd[name] += not_finite
            if np.count_nonzero(expected) > not_finite:
                self.told.add(name)
        return None

    def wrong_if_small(self, name: str) -> Verdict | None:
        """Give small scales to some blocks that both engines decode to the same values. Return a
        verdict if the results then differ."""
        verdict, listed = self.context.verdict, self.oracle.listed[name]
        kind = listed.type
        if self.subject.listed[name].type != kind:
            return None
        n = min(BLOCKS * type_by_name(kind).block, prod(listed.ne))
        raw = with_small_scales(kind, self.oracle.blocks(name, 0, n))
        if raw is None:
            return None
        try:
            expected, actual = self.context.ask_both("dequantize", kind, raw)
        except NoAnswer as error:
            text = f"{kind}, blocks with small scales: {error.summary}"
            return verdict("dequant", error.status, text, error.detail)
        if same_bits(expected, actual):
            return None
        differ = np.flatnonzero(bits(expected) != bits(actual))
        at = int(differ[0])
        text = (
            f"{kind}: {len(differ)} of {len(expected)} weights differ in blocks with "
            f"scales below 6.1e-05 (subnormal F16): weight {at} is {actual[at]:.9g}, "
            f"expected {expected[at]:.9g}"
        )
        detail = {"type": kind, "hex": raw.tobytes().hex(), "weight": at}
        return verdict("dequant", "diverged", text, detail, ("dequant", "small scales", kind))


def row_length(tensor: TensorSummary) -> int:
    return tensor.ne[0] if tensor.ne else 1


def divergence(
    context: Context,
    tensor: TensorSummary,
    first: int,
    expected: NDArray[np.float32],
    actual: NDArray[np.float32],
) -> Verdict:
    differ = np.flatnonzero(bits(expected) != bits(actual))
    worst = mismatch_between(expected, actual, 0.0)  # None if only signs of zeros differ
    at = int(worst.index[0]) if worst else int(differ[0])
    row, column = divmod(first + at, row_length(tensor))
    detail: dict[str, Any] = {
        "tensor": tensor.name,
        "type": tensor.type,
        "row": row,
        "column": column,
        "expected": float(expected[at]),
        "actual": float(actual[at]),
        "mismatched": len(differ),
    }
    n = "1 weight differs" if len(differ) == 1 else f"{len(differ)} weights differ"
    return context.verdict(
        "dequant",
        "diverged",
        f"{tensor.name} ({tensor.type}): {n}; row {row}, column {column} "
        f"is {actual[at]:.9g}, expected {expected[at]:.9g}"
        + in_other_byte_order(expected, actual, 0.0),
        detail,
        key=("dequant", "value", tensor.type),
    )
