"""Cases of sums of rows and of norms."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from lockstep.golden.ops.cases.elementwise import LENGTHS
from lockstep.golden.ops.form import Array, Case, SeededInputs, cases

EPS = 1e-6
PARAMS = {"NORM": {"eps": EPS}, "RMS_NORM": {"eps": EPS}, "L2_NORM": {"eps": EPS}}
SUMS = ("SUM_ROWS", "MEAN")


@cases(*SUMS, *PARAMS)
def rows(op: str, draw: SeededInputs) -> Iterator[Case]:
    def case(name: str, x: Array) -> Case:
        shape = (*x.shape[:-1], 1) if op in SUMS else x.shape
        return Case(id=name, inputs={"x": x}, params=PARAMS.get(op, {}), shape=shape)

    for n in (*LENGTHS, 127):
        yield case(f"length-{n}", draw(f"length-{n}", 2, n))
    for name, size in (("tiny", 1e-12), ("large", 1e12)):
        yield case(name, draw(name, 3, 20) * np.float32(size))
    yield case("far-from-zero", draw("far-from-zero", 2, 33) + np.float32(100))
    yield case("zeros", np.zeros((2, 8), np.float32))
    spike = np.where(np.arange(24) == 7, 1e6, draw("one-large", 24)).astype(np.float32)
    yield case("one-large-value", spike)
    yield case("no-rows", np.zeros((0, 8), np.float32))
    padded = case("padded-rows", draw("padded-rows", 3, 5))
    yield replace(padded, nb={"x": (4, 32, 96, 96)})
    yield case("infinity", np.array([[1, 2, 3], [1, np.inf, 3]], np.float32))
    nan = case("nan", np.array([[1, 2, 3], [1, np.nan, 3]], np.float32))
    yield replace(nan, finding="l2-norm-nan" if op == "L2_NORM" else None)


@cases("GROUP_NORM")
def groups(op: str, draw: SeededInputs) -> Iterator[Case]:
    for name, channels, n in (("even", 6, 3), ("the-last-is-smaller", 5, 3), ("one", 4, 1)):
        x = draw(name, 2, channels, 1, 7)
        yield Case(id=name, inputs={"x": x}, params={"groups": n, "eps": EPS}, shape=x.shape)
