"""The cases of an operation as one C file: inputs, parameters and accepted results."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from lockstep.engine.node import PLAIN
from lockstep.golden.export.literals import array, definition, string, table
from lockstep.golden.suites.base import Vectors

Row = Mapping[str, Any]
MOST_DIMS = 4


def ops(name: str, vectors: Vectors) -> Iterator[str]:
    cases = []
    for i, row in enumerate(vectors.document["cases"]):
        inputs = [input_row(i, row["id"], n, x, vectors) for n, x in row["inputs"].items()]
        params = [param_row(n, value) for n, value in row["params"].items()]
        outputs = [output_row(i, row, n, vectors) for n in row["outputs"]]
        for lines, _ in (*inputs, *outputs):
            yield from lines
        for kind, found in (("input", [r for _, r in inputs]), ("param", params)):
            yield from table(f"static const struct {kind} {kind}s_{i}[]", found or ["0"])
        yield from table(f"static const struct output outputs_{i}[]", [r for _, r in outputs])
        counts = f"{len(inputs)}, {len(params)}, {len(outputs)}"
        cases.append(f"{string(row['id'])}, {counts}, inputs_{i}, params_{i}, outputs_{i}")
    yield from table("static const struct ops_case cases[]", cases)
    yield from definition("ops", name, string(vectors.document["op"]), str(len(cases)), "cases")


def shape_of(shape: list[int]) -> str:
    if len(shape) > MOST_DIMS:
        raise ValueError(f"a shape of more than {MOST_DIMS} dimensions: {shape}")
    return "{" + ", ".join(map(str, shape or [0])) + "}"


def input_row(i: int, case: str, name: str, row: Row, vectors: Vectors) -> tuple[list[str], str]:
    """Return the lines that define an input's data, and the input's row in the table of inputs."""
    values = vectors.tensors[f"{case}/{name}"]
    data = f"in_{i}_{name}"
    nb = shape_of(list(row.get("nb", ())))
    fields = [string(name), string(row["type"]), str(values.ndim), str(values.size)]
    fields += [shape_of(list(values.shape)), nb, data]
    return list(array(data, values)), ", ".join(fields)


def param_row(name: str, value: float | str) -> str:
    if isinstance(value, str):
        return f"{string(name)}, {string(value)}, 0"
    return f"{string(name)}, NULL, {float(value)!r}"


def output_row(i: int, row: Row, name: str, vectors: Vectors) -> tuple[list[str], str]:
    """Return the lines that define the accepted results, and the row in the table of outputs."""
    output = row["outputs"][name]
    lines: list[str] = []
    ways = []
    for way, said in output["ways"].items():
        key, data = f"{row['id']}/{name}.{way}", f"out_{i}_{name}_{way}"
        bounds, exact = "NULL", said["allowed"]
        lines += array(data, as_answered(vectors.tensors[key], output["type"]))
        if exact is None:
            bounds, exact = f"{data}_allowed", 0.0
            lines += array(bounds, vectors.tensors[f"{key}.allowed"].astype(np.float64))
        words = f"{string(way)}, {string(said['reason'])}"
        held = f"NULL, {data}" if output["type"] == "I32" else f"{data}, NULL"
        ways.append(f"{words}, {held}, {bounds}, {float(exact)!r}")
    lines += table(f"static const struct way ways_{i}_{name}[]", ways)
    of = string(output["of"]) if output["of"] else "NULL"
    size = int(np.prod(output["shape"], dtype=np.int64))
    fields = [string(name), string(output["type"]), string(output["judged"]), of]
    fields += [str(len(output["shape"])), str(size), str(len(ways)), shape_of(output["shape"])]
    return lines, ", ".join([*fields, f"ways_{i}_{name}"])


def as_answered(expected: np.ndarray[Any, Any], kind: str) -> np.ndarray[Any, Any]:
    """Return values rounded to the answer's type, as in `golden.ops.judge`; halves are returned as
    float32."""
    if kind not in ("F32", "F16", "I32"):
        raise ValueError(f"outputs of {kind} have no place in ops.h")
    with np.errstate(over="ignore"):
        rounded = expected.astype(PLAIN[kind])
    return rounded if kind == "I32" else rounded.astype(np.float32)
