"""Cases of operations that move values, change only their type, or sort."""

from collections.abc import Iterator

import numpy as np

from lockstep.golden.ops.cases.elementwise import LARGE, ODD
from lockstep.golden.ops.form import Case, SeededInputs, cases


@cases("CONT", "DUP")
def copies(op: str, draw: SeededInputs) -> Iterator[Case]:
    x = draw("plain", 2, 3, 5)
    yield Case(id="plain", inputs={"x": x}, shape=x.shape)
    yield Case(id="transposed", inputs={"x": x}, shape=x.shape, nb={"x": (12, 4, 60, 120)})
    yield Case(id="permuted", inputs={"x": x}, shape=x.shape, nb={"x": (4, 40, 20, 120)})
    yield Case(id="odd-values", inputs={"x": ODD}, shape=ODD.shape)
    yield Case(id="no-rows", inputs={"x": np.zeros((0, 5), np.float32)}, shape=(0, 5))
    ids = draw.ids("integers", 1 << 30, 3, 4)
    yield Case(id="integers", inputs={"x": ids}, shape=ids.shape, type="I32")


@cases("CPY")
def conversions(op: str, draw: SeededInputs) -> Iterator[Case]:
    halfway = np.array([1 + 2.0**-11, 1 + 3 * 2.0**-11, 65519, 65520, 1e-8, 6e-8], np.float32)
    x = np.r_[draw("values", 17, size=100.0), LARGE, ODD, halfway].astype(np.float32)
    place = np.zeros(x.size, np.float16)
    yield Case(id="floats-to-halves", inputs={"a": x, "b": place}, shape=x.shape, type="F16")
    with np.errstate(over="ignore"):
        h = x.astype(np.float16)
    place = np.zeros(x.size, np.float32)
    yield Case(id="halves-to-floats", inputs={"a": h, "b": place}, shape=x.shape)
    x, place = draw("transposed", 4, 6), np.zeros((3, 8), np.float32)
    nb = {"a": (16, 4, 96, 96)}
    yield Case(id="another-shape", inputs={"a": x, "b": place}, shape=(3, 8), nb=nb)


@cases("CONCAT")
def concat_cases(op: str, draw: SeededInputs) -> Iterator[Case]:
    for dim in range(4):
        shape = [2, 3, 2, 5]
        longer = list(shape)
        longer[3 - dim] += 2
        inputs = {"a": draw(f"{dim}-a", *shape), "b": draw(f"{dim}-b", *longer)}
        shape[3 - dim] += longer[3 - dim]
        yield Case(id=f"dim-{dim}", inputs=inputs, params={"dim": dim}, shape=tuple(shape))
    inputs = {"a": draw("turned-a", 3, 5), "b": draw("turned-b", 3, 5)}
    nb = {"a": (12, 4, 60, 60)}
    yield Case(id="transposed-a", inputs=inputs, params={"dim": 0}, shape=(3, 10), nb=nb)


@cases("REPEAT")
def repeat_cases(op: str, draw: SeededInputs) -> Iterator[Case]:
    for name, shape in (("rows", (1, 5)), ("elements", (3, 1)), ("both", (1, 1))):
        yield Case(id=name, inputs={"x": draw(name, *shape)}, shape=(3, 10))
    x, nb = draw("permuted", 2, 3, 5), {"x": (4, 40, 20, 120)}
    yield Case(id="permuted", inputs={"x": x}, shape=(4, 3, 5), nb=nb)


@cases("PAD")
def pad_cases(op: str, draw: SeededInputs) -> Iterator[Case]:
    x = draw("x", 2, 3, 5)
    yield Case(id="behind", inputs={"x": x}, params={"after0": 3, "after1": 1}, shape=(2, 4, 8))
    params = {"before0": 2, "before2": 1, "after0": 1}
    yield Case(id="before-and-behind", inputs={"x": x}, params=params, shape=(3, 3, 8))
    around = {**params, "round": 1}
    yield Case(id="round", inputs={"x": x}, params=around, shape=(3, 3, 8))


@cases("SET")
def set_cases(op: str, draw: SeededInputs) -> Iterator[Case]:
    inputs = {"a": draw("a", 4, 6), "part": draw("part", 2, 3)}
    params = {"nb1": 24, "nb2": 96, "nb3": 96, "offset": 32}
    yield Case(id="a-part-in-the-middle", inputs=inputs, params=params, shape=(4, 6))


@cases("GET_ROWS")
def get_rows_cases(op: str, draw: SeededInputs) -> Iterator[Case]:
    ids = np.array([4, 0, 4, 2], np.int32)
    tables = {
        "floats": draw("floats", 5, 7),
        "halves": draw("halves", 5, 7).astype(np.float16),
        "q8_0": draw.blocks("q8_0", "Q8_0", 5, 64),
        "q4_k": draw.blocks("q4_k", "Q4_K", 5, 256),
    }
    for name, table in tables.items():
        width = {"q8_0": 64, "q4_k": 256}.get(name, 7)
        yield Case(id=name, inputs={"table": table, "ids": ids}, shape=(4, width))
    padded, nb = {"table": draw("padded", 5, 7), "ids": ids}, {"table": (4, 32, 160, 160)}
    yield Case(id="padded-rows", inputs=padded, shape=(4, 7), nb=nb)
    none = np.zeros(0, np.int32)
    yield Case(id="no-ids", inputs={"table": draw("no-ids", 3, 5), "ids": none}, shape=(0, 5))
    inputs = {"table": draw("several", 2, 3, 5), "ids": np.array([[2, 0], [1, 1]], np.int32)}
    yield Case(id="a-table-for-each-row-of-ids", inputs=inputs, shape=(2, 2, 5))
    odd = np.stack([ODD, -ODD])
    yield Case(
        id="odd-values", inputs={"table": odd, "ids": np.array([1], np.int32)}, shape=(1, ODD.size)
    )


@cases("SET_ROWS")
def set_rows_cases(op: str, draw: SeededInputs) -> Iterator[Case]:
    for kind, name in ((np.float32, "F32"), (np.float16, "F16")):
        inputs = {
            "rows": draw(f"{name}-rows", 3, 6, size=10.0),
            "ids": np.array([7, 0, 4], np.int64),
            "before": draw(f"{name}-before", 8, 6).astype(kind),
        }
        yield Case(id=f"into-{name.lower()}", inputs=inputs, shape=(8, 6), type=name)
    nb = {"rows": (4, 32, 96, 96)}
    yield Case(id="padded-rows", inputs=inputs, shape=(8, 6), type="F16", nb=nb)
    inputs = {**inputs, "ids": np.array([3], np.int64)}
    yield Case(
        id="one-row", inputs={**inputs, "rows": inputs["rows"][:1]}, shape=(8, 6), type="F16"
    )


@cases("IM2COL")
def windows(op: str, draw: SeededInputs) -> Iterator[Case]:
    """Yield cases of rows and images. The operation reads only the size of the kernel, not its
    values."""
    x, kernel = draw("x", 1, 1, 3, 11), np.zeros((1, 2, 3, 3), np.float16)
    for name, stride, padding, dilation in (
        ("plain", 1, 0, 1),
        ("all", 2, 2, 2),
        ("same", 1, 1, 1),
    ):
        n = (11 + 2 * padding - dilation * 2 - 1) // stride + 1
        params = {"stride": stride, "padding": padding, "dilation": dilation}
        inputs = {"kernel": kernel, "x": x}
        yield Case(id=name, inputs=inputs, params=params, shape=(1, n, 9), type="F16")
    inputs = {"kernel": np.zeros((2, 3, 2, 3), np.float16), "x": draw("images", 2, 3, 5, 7)}
    both = {"stride": 2, "stride_y": 1, "padding": 1, "padding_y": 2, "images": 1}
    params = {**both, "dilation": 1, "dilation_y": 3}
    for name, kind in (("images", "F32"), ("images-as-halves", "F16")):
        yield Case(id=name, inputs=inputs, params=params, shape=(2, 6, 4, 18), type=kind)


@cases("ARGSORT", "TOP_K")
def orders(op: str, draw: SeededInputs) -> Iterator[Case]:
    ties = np.round(draw("ties", 4, 33))
    signed = np.array([0.0, -1.0, 0.5, -0.0, 2.0], np.float32)
    infinite = np.array([1.0, np.inf, -np.inf, 3e38, -3e38, 0.0], np.float32)
    rows = {
        **{f"length-{n}": draw(f"length-{n}", 2, n) for n in (1, 2, 17, 64)},
        "ties": ties,
        "all-alike": np.ones((1, 9), np.float32),
        "zeros-of-both-signs": signed,
        "infinities": infinite,
    }
    for name, x in rows.items():
        if op == "TOP_K":
            k = max(1, x.shape[-1] // 3)
            shape = (*x.shape[:-1], k)
            yield Case(id=name, inputs={"x": x}, shape=shape, type="I32")
            continue
        for falling in (0, 1):
            way = "falling" if falling else "rising"
            params = {"descending": falling}
            yield Case(
                id=f"{name}-{way}", inputs={"x": x}, params=params, shape=x.shape, type="I32"
            )
