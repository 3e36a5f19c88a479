"""Cases of operations on single elements: functions, arithmetic, clamps."""

from collections.abc import Iterator

import numpy as np

from lockstep.golden.ops.form import Case, SeededInputs, cases

INF, NAN = np.inf, np.nan
LENGTHS = (1, 3, 16, 33)  # lengths around the size of a vector register
LARGE = np.array(
    [1e30, -1e30, 3e38, 1e-38, -1e-38, 1e-45, 0.0, -0.0, 1.0, 88.8, -103.9], np.float32
)
ODD = np.array([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0], np.float32)
HALVES = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997, 8388609.0, -3.7, 3.2], np.float32)
SMOOTH = ("TANH", "EXP", "SIGMOID", "SILU", "SOFTPLUS", "GELU", "GELU_ERF", "GELU_QUICK")
DETERMINED = (
    *("ABS", "SGN", "NEG", "STEP", "RELU", "SQR", "SQRT", "ROUND", "FLOOR", "CEIL", "TRUNC"),
)
POSITIVE = ("SQRT", "LOG")
LARGEST = {"GELU_QUICK": 6e4}  # ggml's table ends with the range of F16
SLOPES = {"alpha_n": 0.8, "alpha_p": 1.3, "beta": 0.5, "eps": -1e-6}
PARAMS = {"XIELU": SLOPES}


@cases(*SMOOTH, *DETERMINED, "LOG", "SIN", "COS", "XIELU")
def functions(op: str, draw: SeededInputs) -> Iterator[Case]:
    params = PARAMS.get(op, {})
    for n in LENGTHS:
        x = draw(f"length-{n}", 2, n, size=4.0)
        x = np.abs(x) if op in POSITIVE else x
        yield Case(id=f"length-{n}", inputs={"x": x}, params=params, shape=x.shape)
    empty = np.zeros((0, 5), np.float32)
    yield Case(id="no-rows", inputs={"x": empty}, params=params, shape=empty.shape)
    padded = draw("padded-rows", 3, 5)
    padded = np.abs(padded) if op in POSITIVE else padded
    nb = {"x": (4, 32, 96, 96)}
    yield Case(id="padded-rows", inputs={"x": padded}, params=params, shape=padded.shape, nb=nb)
    for name, x in (("sizes", LARGE), ("nan-and-infinity", ODD), ("halves-and-near", HALVES)):
        x = x[~(np.abs(x) >= LARGEST.get(op, INF))] if op in LARGEST else x
        yield Case(id=name, inputs={"x": x}, params=params, shape=x.shape)


@cases("ADD", "SUB", "MUL", "DIV")
def arithmetic(op: str, draw: SeededInputs) -> Iterator[Case]:
    a, b = np.array(np.meshgrid(np.r_[ODD, LARGE], np.r_[ODD, LARGE]), np.float32)
    yield Case(id="every-pair-of-odd-values", inputs={"a": a, "b": b}, shape=a.shape)
    for name, small in (
        *(("one-row", (1, 7)), ("one-row-for-all", (7,)), ("one-element-each", (2, 3, 1))),
        *(("one-for-all", (1,)), ("same-shape", (2, 3, 7)), ("each-matrix", (2, 1, 7))),
    ):
        inputs = {"a": draw(f"{name}-a", 2, 3, 7), "b": draw(f"{name}-b", *small)}
        yield Case(id=name, inputs=inputs, shape=(2, 3, 7))
    inputs = {"a": draw("transposed-a", 4, 6), "b": draw("transposed-b", 4, 6)}
    yield Case(id="transposed-b", inputs=inputs, shape=(4, 6), nb={"b": (16, 4, 96, 96)})
    inputs = {"a": draw("permuted-a", 2, 3, 5), "b": draw("permuted-b", 2, 3, 5)}
    yield Case(id="permuted-a", inputs=inputs, shape=(2, 3, 5), nb={"a": (4, 40, 20, 120)})
    empty = np.zeros((0, 5), np.float32)
    yield Case(id="no-rows", inputs={"a": empty, "b": draw("no-rows-b", 1, 5)}, shape=(0, 5))


@cases("ADD")
def halves_added(op: str, draw: SeededInputs) -> Iterator[Case]:
    a, b = draw("halves-a", 3, 9).astype(np.float16), draw("halves-b", 3, 9)
    yield Case(id="halves-plus-floats", inputs={"a": a, "b": b}, shape=(3, 9), type="F16")


@cases("ADD_ID")
def rows_added(op: str, draw: SeededInputs) -> Iterator[Case]:
    ids = np.array([[3, 0], [1, 1], [2, 3]], np.int32)
    inputs = {"a": draw("chosen-a", 3, 2, 9), "rows": draw("chosen-rows", 4, 9), "ids": ids}
    yield Case(id="a-row-for-each-expert-chosen", inputs=inputs, shape=(3, 2, 9))
    inputs = {"a": LARGE.reshape(1, 1, -1), "rows": LARGE[None], "ids": np.zeros((1, 1), np.int32)}
    yield Case(id="sizes", inputs=inputs, shape=(1, 1, LARGE.size))


@cases("SCALE")
def scale_cases(op: str, draw: SeededInputs) -> Iterator[Case]:
    x = np.r_[draw("values", 20, size=3.0), LARGE, ODD].reshape(2, -1)
    for name, scale, bias in (
        *(("plain", 0.3, 0.0), ("zero", 0.0, 0.0), ("with-bias", -1.7, 0.25)),
        *(("large", 1e20, 0.0), ("small", 1e-20, 0.0)),
    ):
        params = {"scale": scale, "bias": bias}
        yield Case(id=name, inputs={"x": x}, params=params, shape=x.shape)


@cases("CLAMP")
def clamp_cases(op: str, draw: SeededInputs) -> Iterator[Case]:
    x = np.r_[draw("values", 20, size=3.0), LARGE, ODD].astype(np.float32)
    for name, low, high in (("both", -1.0, 2.0), ("point", 0.5, 0.5), ("wide", -3e38, 3e38)):
        yield Case(id=name, inputs={"x": x}, params={"min": low, "max": high}, shape=x.shape)


@cases("FILL")
def fill_cases(op: str, draw: SeededInputs) -> Iterator[Case]:
    for name, value in (("zero", 0.0), ("third", 1 / 3), ("tiny", 1e-45)):
        x = draw(name, 3, 7)
        yield Case(id=name, inputs={"x": x}, params={"value": value}, shape=x.shape)


@cases("ARANGE")
def arange_cases(op: str, draw: SeededInputs) -> Iterator[Case]:
    for name, start, step, n in (
        ("ones", 0.0, 1.0, 17),
        ("tenths", -2.0, 0.1, 31),
        ("one", 5, 1, 1),
    ):
        params = {"start": start, "stop": start + n * step, "step": step}
        yield Case(id=name, inputs={}, params=params, shape=(n,))
