"""Vectors of operations, from cases and back: values in float64, and their files."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.node import PLAIN
from lockstep.engine.ops.build import ANY_ENGINE, Build
from lockstep.engine.ops.fused.base import Call, operate
from lockstep.engine.ops.ggml.base import expect, has_meaning
from lockstep.engine.ops.near import Expected
from lockstep.engine.ops.sums import in_order
from lockstep.engine.registry import import_members
from lockstep.golden.ops.form import CASES, NUMPY_TYPES, Array, Blocks, Case, SeededInputs, node_of
from lockstep.golden.store import BrokenGolden, Tensors

# one lane, because the limit of a sequential sum holds for all other orders
GGML = Build(lanes=1, multiply=in_order, zeros=True)
RESULT = "y"  # name of the only result of an op of ggml
Ways = Mapping[str, Expected]
# outputs that are indices in a row: (rule, the values from which they choose or the count)
JUDGED = {
    ("ARGSORT", RESULT): ("ties", "x"),
    ("TOP_K", RESULT): ("choice", "x"),
    ("route_topk_softmax", "ids"): ("ties", "logits"),
    ("moe_buckets", "ids"): ("rows", "tpe"),
}


def operations() -> list[str]:
    """Return all operations with vectors: ggml's ops and the operations that engines offer."""
    import_members("lockstep.golden.ops.cases")
    return sorted(CASES)


def cases_of(op: str, seed: int) -> list[Case]:
    import_members("lockstep.golden.ops.cases")
    found = [case for maker in CASES[op] for case in maker(op, SeededInputs(op, seed))]
    if len({case.id for case in found}) != len(found):
        raise BrokenGolden(f"two cases of {op} have the same id")
    return found


def truths(op: str, case: Case) -> Mapping[str, Ways]:
    """Return the right values of each output: "plain" in float64, and "ggml" with ggml's roundings.

    A case with a finding accepts only "plain".
    """
    if not has_meaning(op):
        inputs = {k: v for k, v in case.inputs.items() if isinstance(v, np.ndarray)}
        return operate(op, Call(inputs, case.params))
    node = node_of(op, case)
    plain, ggml = (expect(node, build) for build in (ANY_ENGINE, GGML))
    if plain.answer is not None:
        plain = ggml = Expected(plain.answer, 0.0, plain.reason)
    ways = {"plain": plain}
    if not (case.finding or inside(ggml, plain)):
        ways["ggml"] = ggml
    return {RESULT: {way: reshape_expected(found, case.shape) for way, found in ways.items()}}


def reshape_expected(found: Expected, shape: tuple[int, ...]) -> Expected:
    """Return the value in the shape of the case, which may have fewer than ggml's four
    dimensions."""
    allowed = np.broadcast_to(np.asarray(found.allowed, np.float64), found.value.shape)
    return Expected(found.value.reshape(shape), allowed.reshape(shape), found.reason)


def inside(one: Expected, other: Expected) -> bool:
    """Return True if all results that `one` accepts are accepted by `other`."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(one.value - other.value) + one.allowed <= np.asarray(other.allowed)
    same = (one.value == other.value) | (np.isnan(one.value) & np.isnan(other.value))
    return bool((apart | (same & ~np.isfinite(one.value.astype(np.float64)))).all())


def write_case(op: str, case: Case) -> tuple[dict[str, Any], Tensors]:
    """Return the document's row for a case, and the row's tensors."""
    tensors: Tensors = {}
    row: dict[str, Any] = {"id": case.id, "params": dict(case.params)}
    row["inputs"] = dict(inputs_of(case, tensors))
    row["outputs"] = {}
    for name, ways in truths(op, case).items():
        rule, of = JUDGED.get((op, name), ("value", None))
        first = next(iter(ways.values()))
        kind = case.type if has_meaning(op) else type_of(first.value)
        row["outputs"][name] = {
            "type": kind,
            "shape": list(first.value.shape),
            "judged": rule,
            "of": of,
            "ways": {
                way: describe_output(f"{case.id}/{name}.{way}", found, kind, tensors)
                for way, found in ways.items()
            },
        }
    row["finding"] = case.finding
    return row, tensors


def inputs_of(case: Case, tensors: Tensors) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, value in case.inputs.items():
        raw = value.raw if isinstance(value, Blocks) else value
        tensors[f"{case.id}/{name}"] = raw
        kind = value.type if isinstance(value, Blocks) else NUMPY_TYPES[raw.dtype]
        row: dict[str, Any] = {"type": kind, "shape": list(raw.shape)}
        if name in case.nb:
            row["nb"] = list(case.nb[name])
        yield name, row


def type_of(value: NDArray[Any]) -> str:
    """Return the type of an output; numbers with a fraction are float32."""
    return "F32" if value.dtype.kind == "f" else NUMPY_TYPES[value.dtype]


def describe_output(where: str, found: Expected, kind: str, tensors: Tensors) -> dict[str, Any]:
    """Return one way of an output for a document: exact values in their type, other values in
    float64."""
    allowed = np.broadcast_to(np.asarray(found.allowed, np.float64), found.value.shape)
    value = found.value
    if value.dtype.kind == "f":  # the bits of a NaN depend on the processor, and carry no meaning
        value = np.where(np.isnan(value), value.dtype.type(np.nan), value)
    with np.errstate(over="ignore"):
        settled = value.astype(PLAIN[kind])
    # the limit is NaN after a combination of infinities, and such an element must be equal
    allowed = np.where(np.isfinite(settled), allowed, 0.0)
    allowed = np.nan_to_num(allowed, nan=0.0, posinf=np.inf)
    if np.isinf(rounded_up(allowed)).any():
        raise BrokenGolden(f"{where}: an infinite bound would let anything pass")
    exact = not allowed.any()
    tensors[where] = settled
    if not exact:  # a value that the type cannot hold is infinite
        tensors[where] = np.where(np.isfinite(settled), value, settled).astype(np.float64)
        tensors[f"{where}.allowed"] = rounded_up(allowed)
    return {"allowed": 0.0 if exact else None, "reason": found.reason}


def rounded_up(allowed: NDArray[np.float64]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return np.nextafter(allowed.astype(np.float32), np.float32(np.inf))


def case_of(row: Mapping[str, Any], tensors: Tensors) -> Case:
    """Read a case back from its row."""
    inputs: dict[str, Array | Blocks] = {}
    for name, held in row["inputs"].items():
        raw = tensors[f"{row['id']}/{name}"]
        inputs[name] = raw if held["type"] in PLAIN else Blocks(type=held["type"], raw=raw)
    result = row["outputs"].get(RESULT, {"shape": [], "type": "F32"})
    return Case(
        id=row["id"],
        inputs=inputs,
        params=row["params"],
        shape=tuple(result["shape"]),
        type=result["type"],
        nb={name: tuple(held["nb"]) for name, held in row["inputs"].items() if "nb" in held},
        finding=row["finding"],
    )
