"""Cases of gates, softmax, rotations, products and attention."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.engine.quants.base import F32, WeightFormat
from lockstep.golden.ops.cases.elementwise import ODD
from lockstep.golden.ops.form import Array, Blocks, Case, SeededInputs, cases
from lockstep.golden.suites.dot import activations

INF = np.inf
OF_GATE: dict[str, dict[str, Any]] = {
    "SWIGLU_OAI": {"alpha": 1.702, "limit": 2.0},
    "SWIGLU_CLAMP": {"limit": 2.0},
}
NORMAL, NEOX, MROPE, VISION, IMROPE = 0, 2, 8, 24, 40  # values of GGML_ROPE_TYPE_*
ANGLES = {"n_ctx_orig": 4096, "freq_base": 1e4, "freq_scale": 1.0, "attn_factor": 1.0}
BETAS = {"beta_fast": 32.0, "beta_slow": 1.0}


@cases("REGLU", "GEGLU", "SWIGLU", "GEGLU_ERF", "GEGLU_QUICK", "SWIGLU_OAI", "SWIGLU_CLAMP")
def gates(op: str, draw: SeededInputs) -> Iterator[Case]:
    more = OF_GATE.get(op, {})
    for n in (1, 7, 32):
        gate, up = draw(f"gate-{n}", 2, n, size=3.0), draw(f"up-{n}", 2, n, size=2.0)
        yield Case(id=f"two-{n}", inputs={"gate": gate, "up": up}, params=more, shape=(2, n))
        both = np.concatenate([gate, up], axis=-1)
        for name, swapped in (("halves", 0), ("swapped-halves", 1)):
            params = {**more, "swapped": swapped}
            inputs = {"gate": both}
            yield Case(id=f"{name}-{n}", inputs=inputs, params=params, shape=(2, n))
    gate = np.array([-1e4, -90.0, -20.0, -1e-20, 0.0, -0.0, 1e-20, 20.0, 90.0, 1e4], np.float32)
    up = draw("up-of-sizes", gate.size, size=2.0)
    yield Case(id="sizes", inputs={"gate": gate, "up": up}, params=more, shape=gate.shape)
    gate, up = np.array(np.meshgrid(ODD, ODD), np.float32)
    yield Case(
        id="nan-and-infinity", inputs={"gate": gate, "up": up}, params=more, shape=gate.shape
    )
    inputs = {"gate": draw("view-gate", 3, 7), "up": draw("view-up", 3, 7)}
    rows = {"gate": (4, 56, 168, 168), "up": (4, 56, 168, 168)}
    yield Case(id="views-of-longer-rows", inputs=inputs, params=more, shape=(3, 7), nb=rows)
    none = np.zeros((0, 4), np.float32)
    yield Case(id="no-rows", inputs={"gate": none, "up": none}, params=more, shape=(0, 4))


@cases("SOFT_MAX")
def softmax(op: str, draw: SeededInputs) -> Iterator[Case]:
    def case(name: str, x: Array, scale: float = 1.0, bias: float = 0.0, **more: Array) -> Case:
        params = {"scale": scale, "max_bias": bias}
        return Case(id=name, inputs={"x": x, **more}, params=params, shape=x.shape)

    for n in (1, 7, 33):
        yield case(f"length-{n}", draw(f"length-{n}", 2, n, size=5.0), 0.7)
    x = draw("masked", 3, 4, 9, size=4.0)  # (heads, tokens, cells)
    mask = np.where(np.tril(np.ones((4, 9)), 5) > 0, 0.0, -INF).astype(np.float32)
    yield case("causal", x, 0.3, mask=mask)
    yield case("causal-by-halves", x, 0.3, mask=mask.astype(np.float16))
    yield case("values-in-the-mask", x, 0.3, mask=mask + draw("values", 4, 9))
    for heads in (3, 4):  # a power of two, and another number
        y = draw(f"alibi-{heads}", heads, 4, 9)
        yield case(f"alibi-{heads}-heads", y, 0.3, 8.0, mask=mask - np.abs(draw("far", 4, 9)))
    sinks = np.array([0.5, -3.0, 40.0], np.float32)
    yield case("sinks", x, sinks=sinks)
    yield case("sinks-and-mask", x, 0.5, mask=mask, sinks=sinks)
    yield replace(case("padded-rows", draw("padded-rows", 3, 5)), nb={"x": (4, 32, 96, 96)})
    yield case("ties", np.full((2, 5), 3.0, np.float32))
    yield case("large", np.array([[1e30, -1e30, 1e30], [88.0, 87.0, -200.0]], np.float32))
    yield case("all-but-one-hidden", np.array([[-INF, -INF, 2.0, -INF]], np.float32))
    yield case("no-rows", np.zeros((0, 5), np.float32))
    for name, value in (("nan", np.nan), ("infinity", INF)):
        yield case(name, np.array([[1.0, value, 2.0], [1.0, 0.0, 2.0]], np.float32))


@cases("SOFT_MAX")
def softmax_of_nothing(op: str, draw: SeededInputs) -> Iterator[Case]:
    x = draw("hidden", 2, 5)
    mask = np.array([[0, 0, -INF, -INF, -INF], [-INF] * 5], np.float32)
    params = {"scale": 1.0, "max_bias": 0.0}
    inputs = {"x": x, "mask": mask}
    sunk = {**inputs, "sinks": np.zeros(1, np.float32)}
    yield Case(id="a-hidden-row-with-a-sink", inputs=sunk, params=params, shape=x.shape)
    yield Case(id="a-hidden-row-as-ggml-does", inputs=inputs, params=params, shape=x.shape)


@cases("ROPE", "ROPE_BACK")
def rotations(op: str, draw: SeededInputs) -> Iterator[Case]:
    near, far = (np.array(at, np.int32) for at in ([0, 1, 2, 77], [4095, 100_000]))

    def case(name: str, n: int, dims: int, at: Array, more: dict[str, Any], **inputs: Any) -> Case:
        tokens = at.size // 4 if more.get("mode", 0) & MROPE else at.size
        x = draw(name, tokens, 2, n)  # (tokens, heads, dim)
        params = {**ANGLES, "n_dims": dims, **more}
        return Case(
            id=name, inputs={"x": x, "positions": at, **inputs}, params=params, shape=x.shape
        )

    stretched = {"freq_scale": 0.25, "ext_factor": 1.0, **BETAS}
    for kind, mode in (("normal", NORMAL), ("neox", NEOX)):
        here = {"mode": mode}
        yield case(f"{kind}", 16, 16, near, here)
        yield case(f"{kind}-in-part", 20, 12, near, here)
        yield case(f"{kind}-in-the-middle", 20, 12, near, {**here, "first_dim": 4})
        yield case(f"{kind}-far", 16, 16, far, here)
        yield case(f"{kind}-linear", 16, 16, near, {**here, "freq_scale": 0.5})
        yield case(f"{kind}-yarn", 32, 32, near, {**here, **stretched})
        factors = np.linspace(1, 8, 8, dtype=np.float32)
        yield case(f"{kind}-factors", 16, 16, near, here, factors=factors)
        yield case(f"{kind}-yarn-factors", 16, 16, near, {**here, **stretched}, factors=factors)
        scaled = {**here, "attn_factor": 1.3, "freq_base": 5e5}
        yield case(f"{kind}-magnitude", 16, 16, near, scaled)
    four = np.array([[0, 5, 9], [0, 1, 2], [0, 3, 1], [7, 7, 7]], np.int32).reshape(-1)
    for kind, mode in (("sections", MROPE), ("sections-in-turn", IMROPE)):
        parts = {f"section_{i}": n for i, n in enumerate((3, 2, 2, 1))}
        yield case(kind, 16, 16, four, {"mode": mode, **parts})
    halves = {"section_0": 4, "section_1": 4}
    yield case("sections-of-images", 16, 8, four, {"mode": VISION, **halves})


@cases("ROPE")
def rotated_views(op: str, draw: SeededInputs) -> Iterator[Case]:
    x = draw("view", 3, 2, 8)
    inputs = {"x": x, "positions": np.array([5, 6, 7], np.int32)}
    params = {**ANGLES, "n_dims": 8, "mode": NEOX}
    nb = {"x": (4, 48, 160, 480)}  # heads within a fused QKV
    yield Case(id="a-view-with-gaps", inputs=inputs, params=params, shape=x.shape, nb=nb)


@cases("MUL_MAT")
def products(op: str, draw: SeededInputs) -> Iterator[Case]:
    def case(name: str, a: Array | Blocks, b: Array, shape: tuple[int, ...]) -> Case:
        return Case(id=name, inputs={"a": a, "b": b}, shape=shape)

    for k, rows, tokens in ((1, 1, 1), (7, 5, 3), (33, 17, 1), (64, 4, 9)):
        a, b = draw(f"a-{k}", rows, k), draw(f"b-{k}", tokens, k)
        yield case(f"floats-{k}-{rows}-{tokens}", a, b, (tokens, rows))
        yield case(f"halves-{k}-{rows}-{tokens}", a.astype(np.float16), b, (tokens, rows))
    for kind, k in (("Q8_0", 64), ("Q4_0", 64), ("Q4_K", 256), ("Q6_K", 256), ("IQ4_NL", 64)):
        a, b = draw.blocks(kind, kind, 5, k), converted_alike(kind, k, draw)
        yield case(f"{kind.lower()}", a, b, (len(b), 5))
    lost = np.where(np.arange(256) == 3, np.nan, draw("nan-in-a-block", 1, 256)).astype(np.float32)
    q4_k = case("q4_k-nan", draw.blocks("nan", "Q4_K", 2, 256), lost, (1, 2))
    yield replace(q4_k, finding="q8-k-nan")
    a, b = draw("repeated-a", 2, 5, 9), draw("repeated-b", 6, 4, 9)
    yield case("the-first-repeats", a, b, (6, 4, 5))
    a, b = draw("permuted-a", 2, 3, 8), draw("permuted-b", 2, 4, 8)
    yield replace(case("permuted-a", a, b, (2, 4, 3)), nb={"a": (4, 64, 32, 192)})
    a, b = draw("heads-a", 2, 3, 8), draw("heads-b", 2, 4, 8)
    heads = {"a": (4, 64, 32, 192), "b": (4, 64, 32, 256)}
    yield replace(case("permuted-both", a, b, (2, 4, 3)), nb=heads)
    yield case("no-tokens", draw("none", 3, 8), np.zeros((0, 8), np.float32), (0, 3))
    sizes = np.array([[1e15, 1.0, -1e15, 1e-15]], np.float32)
    odd = np.array([[1, 2, 3], [INF, 1, 1], [np.nan, 0, 0]], np.float32)
    yield case("nan-and-infinity", odd, np.array([[1, 1, 1], [0, 1, 2]], np.float32), (2, 3))
    yield case("cancelling", sizes, np.array([[1.0, 1.0, 1.0, 1.0]], np.float32), (1, 1))


def converted_alike(kind: str, columns: int, draw: SeededInputs) -> F32:
    """Return values, (4, columns), that every known build of ggml converts to the same bytes."""
    return activations(WeightFormat.member(kind), columns, draw.seed)


@cases("MUL_MAT_ID")
def experts(op: str, draw: SeededInputs) -> Iterator[Case]:
    ids = np.array([[0, 3], [2, 2]], np.int32)
    for kind, k in (("F32", 24), ("F16", 24), ("Q8_0", 64), ("Q4_K", 256)):
        weights: Array | Blocks
        if k == 24:
            weights = draw(kind, 4, 6, k).astype(np.float16 if kind == "F16" else np.float32)
            rows = draw(f"{kind}-x", 4, k)
        else:
            weights, rows = draw.blocks(kind, kind, 4, 6, k), converted_alike(kind, k, draw)
        for name, x in (("one-row-for-all", rows[:2, None]), ("each", rows.reshape(2, 2, k))):
            inputs = {"experts": weights, "x": x, "ids": ids}
            yield Case(id=f"{kind.lower()}-{name}", inputs=inputs, shape=(2, 2, 6))


@cases("FLASH_ATTN_EXT")
def attention(op: str, draw: SeededInputs) -> Iterator[Case]:
    def case(name: str, tokens: int, cells: int, dims: tuple[int, int], **more: Any) -> Case:
        """Return a case whose mask hides the cells after each token, and all cells of the first
        row."""
        kind = more.get("kind", np.float32)
        q = draw(f"{name}-q", 4, tokens, dims[0])
        k, v = (
            draw(f"{name}-{i}", 2, cells, dim).astype(kind)
            for i, dim in zip("kv", dims, strict=True)
        )
        inputs = {"q": q, "k": k, "v": v}
        if more.get("mask", True):
            seen = np.arange(cells)[None] <= np.arange(tokens)[:, None] + cells - tokens
            inputs["mask"] = np.where(seen, 0.0, -INF).astype(np.float16)
            if more.get("hidden", False):
                inputs["mask"][0] = -INF
        if more.get("sinks", False):
            inputs["sinks"] = np.array([-2.0, 0.0, 1.0, 30.0], np.float32)
        params = {"scale": 0.3, "max_bias": more.get("bias", 0.0), "softcap": more.get("cap", 0.0)}
        return Case(id=name, inputs=inputs, params=params, shape=(tokens, 4, dims[1]))

    yield case("one-cell", 1, 1, (16, 16))
    yield case("causal", 3, 11, (16, 16))
    yield case("no-mask", 2, 9, (16, 16), mask=False)
    yield case("a-hidden-row", 3, 9, (16, 16), hidden=True)
    yield case("values-narrower-than-keys", 2, 9, (24, 16))
    yield case("alibi", 3, 9, (16, 16), bias=8.0)
    yield case("soft-cap", 3, 9, (16, 16), cap=5.0)
    yield case("sinks", 3, 9, (16, 16), sinks=True)
    yield case("cache-of-halves", 3, 9, (16, 16), kind=np.float16)
    tokens_first = {"q": (4, 256, 64, 768), "k": (4, 128, 64, 1152), "v": (4, 128, 64, 1152)}
    yield replace(case("tokens-first-in-memory", 3, 9, (16, 16)), nb=tokens_first)


@cases("LIGHTNING_INDEXER")
def indexer(op: str, draw: SeededInputs) -> Iterator[Case]:
    mask = np.where(np.tril(np.ones((3, 7)), 4) > 0, 0.0, -INF).astype(np.float16)
    inputs = {
        "q": draw("q", 1, 3, 4, 16),
        "k": draw("k", 1, 7, 1, 16),
        "weights": draw("weights", 1, 1, 3, 4),
        "mask": mask,
    }
    yield Case(id="causal", inputs=inputs, shape=(1, 1, 3, 7))
