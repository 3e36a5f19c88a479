"""Cases of operations that small engines build layers from: norms with weights, heads and
caches."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from lockstep.engine.ops import functions
from lockstep.golden.ops.cases.elementwise import LARGE, ODD
from lockstep.golden.ops.form import F32, Array, Case, SeededInputs, cases

INF = np.inf
EPS = 1e-6


@cases("matmul")
def products(op: str, draw: SeededInputs) -> Iterator[Case]:
    for m, k, n in ((1, 1, 1), (3, 7, 5), (1, 33, 4), (4, 64, 1), (2, 3, 2)):
        tag = f"{m}-{k}-{n}"
        yield Case(id=tag, inputs={"a": draw(f"{tag}-a", m, k), "b": draw(f"{tag}-b", k, n)})
    inputs = {"a": np.zeros((0, 4), np.float32), "b": draw("none-b", 4, 3)}
    yield Case(id="no-rows", inputs=inputs)


@cases("add_scalar", "rsqrt_elem", "scaled_add")
def elements(op: str, draw: SeededInputs) -> Iterator[Case]:
    for name, x in (("values", draw("values", 3, 11)), ("sizes", LARGE), ("odd-values", ODD)):
        if op == "scaled_add":
            inputs = {"y": draw(f"{name}-y", *x.shape), "x": x}
            yield Case(id=name, inputs=inputs, params={"scale": 0.3})
        elif op == "add_scalar":
            yield Case(id=name, inputs={"x": x}, params={"s": 1e-6})
        else:
            yield Case(id=name, inputs={"x": np.abs(x)})


@cases("sum_squares_axis")
def squares(op: str, draw: SeededInputs) -> Iterator[Case]:
    for rows, columns in ((1, 1), (3, 7), (5, 33)):
        for axis in (0, 1):
            name = f"{rows}-by-{columns}-axis-{axis}"
            yield Case(id=name, inputs={"x": draw(name, rows, columns)}, params={"axis": axis})


@cases("broadcast_row_scalars", "transpose_2d", "slice_cols", "copy_slice")
def parts(op: str, draw: SeededInputs) -> Iterator[Case]:
    x = draw("x", 4, 7)
    if op == "broadcast_row_scalars":
        for width in (1, 5):
            yield Case(id=f"width-{width}", inputs={"x": x[:, 0].copy()}, params={"width": width})
    elif op == "transpose_2d":
        for rows, columns in ((4, 7), (1, 5), (5, 1), (3, 3)):
            name = f"{rows}-by-{columns}"
            yield Case(id=name, inputs={"x": draw(name, rows, columns)})
    elif op == "slice_cols":
        for start, end in ((0, 7), (2, 5), (6, 7), (3, 3)):
            params = {"start": start, "end": end}
            yield Case(id=f"{start}-to-{end}", inputs={"x": x}, params=params)
    else:
        inputs = {"src": draw("src", 9), "dst": draw("dst", 12)}
        for at, to, n in ((0, 0, 9), (3, 7, 5), (8, 11, 1), (4, 2, 0)):
            params = {"src_offset": at, "dst_offset": to, "len": n}
            yield Case(id=f"{at}-to-{to}-{n}", inputs=inputs, params=params)


@cases("softmax_rows")
def softmax(op: str, draw: SeededInputs) -> Iterator[Case]:
    for n in (1, 7, 33):
        yield Case(id=f"length-{n}", inputs={"x": draw(f"length-{n}", 2, n, size=5.0)})
    hidden = draw("hidden", 3, 5)
    hidden[1], hidden[2, 2:] = -INF, -INF
    for name, x in (
        ("a-hidden-row", hidden),
        ("one-hidden-element", np.array([[-INF]], np.float32)),
        ("ties", np.full((1, 6), -2.5, np.float32)),
        ("large", np.array([[1e30, 1e30, -1e30], [90.0, 89.0, -300.0]], np.float32)),
        ("no-rows", np.zeros((0, 4), np.float32)),
    ):
        yield Case(id=name, inputs={"x": x})


@cases("weighted_rms_norm", "affine_layer_norm", "fused_add_rms_norm")
def norms(op: str, draw: SeededInputs) -> Iterator[Case]:
    for name, rows, n, size in (
        *(("one-element", 2, 1, 1.0), ("odd-length", 3, 33, 1.0), ("one-row", 1, 64, 1.0)),
        *(("tiny", 2, 20, 1e-5), ("large", 2, 20, 1e8), ("zeros", 2, 8, 0.0)),
    ):
        inputs = {"x": draw(f"{name}-x", rows, n) * np.float32(size)}
        if op == "affine_layer_norm":
            inputs |= {"gamma": draw(f"{name}-gamma", n), "beta": draw(f"{name}-beta", n)}
        else:
            inputs["weight"] = 1 + draw(f"{name}-weight", n, size=0.2)
        if op == "fused_add_rms_norm":
            inputs["residual"] = draw(f"{name}-residual", rows, n) * np.float32(size)
        yield Case(id=name, inputs=inputs, params={"eps": EPS})


def tables(positions: int, dim: int, base: float = 1e4) -> dict[str, F32]:
    angles = np.arange(positions)[:, None] * functions.power(base, -np.arange(0, dim, 2) / dim)
    both = {"cos": functions.cos(angles), "sin": functions.sin(angles)}
    return {name: value.astype(np.float32) for name, value in both.items()}


@cases("apply_rotary_emb", "qk_norm_rope")
def rotations(op: str, draw: SeededInputs) -> Iterator[Case]:
    for pairs in ("half", "adjacent"):
        for tokens, heads, dim, at in ((1, 1, 2, 0), (3, 2, 8, 0), (1, 4, 6, 9), (4, 3, 16, 5)):
            tag = f"{pairs}-{tokens}-{heads}-{dim}-from-{at}"
            inputs = {"x": draw(tag, tokens, heads, dim), **tables(12, dim)}
            params: dict[str, Any] = {"pos_offset": at, "pairs": pairs}
            if op == "apply_rotary_emb":
                yield Case(id=tag, inputs=inputs, params=params)
                continue
            inputs["weight"] = 1 + draw(f"{tag}-weight", dim, size=0.2)
            for mode in (0, 1, 2):
                more = {**params, "mode": mode, "eps": EPS}
                yield Case(id=f"{tag}-mode-{mode}", inputs=inputs, params=more)


def fused_qkv(draw: SeededInputs, tag: str, tokens: int, at: int, mode: int, pairs: str) -> Case:
    dim, q_heads, kv_heads = 8, 4, 2
    inputs = {
        "qkv": draw(f"{tag}-qkv", tokens, (q_heads + 2 * kv_heads) * dim),
        "q_weight": 1 + draw(f"{tag}-q", dim, size=0.2),
        "k_weight": 1 + draw(f"{tag}-k", dim, size=0.2),
        **tables(12, dim),
    }
    params = {"q_heads": q_heads, "kv_heads": kv_heads, "head_dim": dim, "pos_offset": at}
    return Case(
        id=tag, inputs=inputs, params={**params, "qk_mode": mode, "eps": EPS, "pairs": pairs}
    )


QKV = (
    *(("prompt", 3, 0, 1, "half"), ("one-token", 1, 6, 1, "half")),
    *(("without-norm", 2, 4, 2, "half"), ("adjacent-pairs", 2, 4, 1, "adjacent")),
)


@cases("split_qkv")
def splits(op: str, draw: SeededInputs) -> Iterator[Case]:
    for q_heads, kv_heads in ((4, 2), (3, 3), (4, 1)):
        tag = f"{q_heads}-and-{kv_heads}-heads"
        params = {"q_heads": q_heads, "kv_heads": kv_heads, "head_dim": 5}
        qkv = draw(tag, 3, (q_heads + 2 * kv_heads) * 5)
        yield Case(id=tag, inputs={"qkv": qkv}, params=params)


@cases("split_qkv_norm_rope")
def prepared_heads_cases(op: str, draw: SeededInputs) -> Iterator[Case]:
    for row in QKV:
        yield fused_qkv(draw, *row)


@cases("split_qkv_norm_rope_into_cache", "split_qkv_norm_rope_into_paged_cache")
def stored_heads_cases(op: str, draw: SeededInputs) -> Iterator[Case]:
    """Yield cases of stored heads. Tokens are stored after earlier tokens. In paged caches, blocks
    are out of order and tokens cross a block's edge."""
    paged = op.endswith("paged_cache")
    for tag, tokens, at, mode, pairs in QKV:
        case = fused_qkv(draw, tag, tokens, at, mode, pairs)
        shape = (5, 2, 4, 8) if paged else (2, 10, 8)
        more: dict[str, Array] = {f"cache_{n}": draw(f"{tag}-cache-{n}", *shape) for n in "kv"}
        if paged:
            more["block_table"] = np.array([3, 0, 4], np.int32)
        params = {**case.params, "cache_len": at}
        yield Case(id=tag, inputs={**case.inputs, **more}, params=params)


@cases("kv_cache_append_head_major")
def append_cases(op: str, draw: SeededInputs) -> Iterator[Case]:
    for at, tokens in ((0, 3), (4, 1), (6, 2), (8, 0)):
        tag = f"{tokens}-behind-{at}"
        inputs = {f"cache_{n}": draw(f"{tag}-cache-{n}", 2, 8, 5) for n in "kv"}
        inputs |= {f"new_{n}": draw(f"{tag}-new-{n}", 2, tokens, 5) for n in "kv"}
        yield Case(id=tag, inputs=inputs, params={"cache_len": at})


@cases("transpose_head_to_token")
def transpose_cases(op: str, draw: SeededInputs) -> Iterator[Case]:
    for heads, tokens, dim in ((2, 3, 5), (1, 4, 3), (4, 1, 3), (2, 0, 3)):
        tag = f"{heads}-{tokens}-{dim}"
        yield Case(id=tag, inputs={"x": draw(tag, heads, tokens, dim)})
