"""Do both engines read the same weights out of the file, bit for bit?"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.ggml_types import type_by_name
from harness.compare import mismatch_between
from harness.records import FileSummary, TensorSummary, Verdict
from harness.runner import Session
from harness.suites.base import Context, NoAnswer, Suite

CHUNK = 1 << 22  # weights compared at a time


class Dequant(Suite, name="dequant"):
    order = 30

    def run(self, context: Context) -> Iterator[Verdict]:
        oracle: FileSummary = context.ask(context.oracle, "metadata")
        subject: FileSummary = context.ask(context.subject, "metadata")
        theirs = {t.name: t for t in subject.tensors}
        agreed: dict[str, list[int]] = {}
        for i, tensor in enumerate(oracle.tensors):
            context.progress(f"weights {i + 1}/{len(oracle.tensors)}: {tensor.name}")
            other = theirs.get(tensor.name)
            if other is None or (other.ne, other.type) != (tensor.ne, tensor.type):
                yield context.verdict(
                    "dequant",
                    "not-compared",
                    f"{tensor.name}: the two files hold different kinds of tensor",
                )
                continue
            try:
                wrong = compare_tensor(context, (oracle, tensor), (subject, other))
            except NoAnswer as error:
                if error.status == "crashed":
                    raise
                yield context.verdict("dequant", error.status, f"{tensor.name}: {error.summary}")
                continue
            if wrong is not None:
                yield wrong
            else:
                agreed.setdefault(tensor.type, []).append(int(np.prod(tensor.ne)))
        for kind, sizes in sorted(agreed.items()):
            yield context.verdict(
                "dequant",
                "agreed",
                f"{kind}: {sum(sizes):,} weights of {len(sizes)} tensors agree bit for bit",
            )


def compare_tensor(
    context: Context,
    oracle: tuple[FileSummary, TensorSummary],
    subject: tuple[FileSummary, TensorSummary],
) -> Verdict | None:
    kind = type_by_name(oracle[1].type)
    n_blocks = oracle[1].n_bytes // kind.bytes
    per_chunk = CHUNK // kind.block
    for start in range(0, n_blocks, per_chunk):
        span = slice(start * kind.bytes, min(start + per_chunk, n_blocks) * kind.bytes)
        expected = decoded(context, context.oracle, context.model, *oracle, span)
        actual = decoded(context, context.subject, context.subject_model, *subject, span)
        if not np.array_equal(bits(expected), bits(actual)):
            return divergence(context, oracle[1], start * kind.block, expected, actual)
    return None


def decoded(
    context: Context,
    session: Session,
    path: Path,
    file: FileSummary,
    tensor: TensorSummary,
    span: slice,
) -> NDArray[np.float32]:
    """A run of blocks, read from the file where the engine itself says that it lies."""
    at = file.data_offset + tensor.offset + span.start
    raw = np.fromfile(path, np.uint8, count=span.stop - span.start, offset=at)
    values: NDArray[np.float32] = context.ask(session, "dequantize", tensor.type, raw)
    return values


def bits(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """NaN equals NaN, whatever its sign and payload; zeros keep their sign."""
    return np.where(np.isnan(values), np.float32(np.nan), values).view(np.uint32)


def divergence(
    context: Context,
    tensor: TensorSummary,
    first: int,
    expected: NDArray[np.float32],
    actual: NDArray[np.float32],
) -> Verdict:
    differ = np.flatnonzero(bits(expected) != bits(actual))
    worst = mismatch_between(expected, actual, 0.0)  # None if only the signs of zeros differ
    at = int(worst.index[0]) if worst else int(differ[0])
    row, column = divmod(first + at, tensor.ne[0] if tensor.ne else 1)
    detail: dict[str, Any] = {
        "tensor": tensor.name,
        "type": tensor.type,
        "row": row,
        "column": column,
        "expected": float(expected[at]),
        "actual": float(actual[at]),
        "mismatched": len(differ),
    }
    return context.verdict(
        "dequant",
        "diverged",
        f"{tensor.name} ({tensor.type}): {len(differ)} weights differ; row {row}, column {column} "
        f"is {actual[at]:.9g}, expected {expected[at]:.9g}",
        detail,
        key=("dequant", "value", tensor.type),
    )
