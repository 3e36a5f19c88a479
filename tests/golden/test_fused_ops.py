"""Fused operations: a second implementation of each passes, and typical mistakes fail."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lockstep.engine.errors import Unsupported
from lockstep.engine.ops.fused.base import OPERATIONS, Call, operate
from lockstep.engine.registry import import_members
from lockstep.golden.ops.judge import judge
from lockstep.golden.ops.vectors import case_of, operations
from tests.golden.fused_by_hand import (
    F32,
    HONEST,
    Array,
    Engine,
    Inputs,
    Params,
    add_norm,
    everywhere,
    flash,
    gptq,
    heads,
    paged,
    qkv,
    reduced,
    ring,
    rms,
    route,
    softmax,
    split_prepared,
    turn,
    weigh,
)
from tests.golden.test_ops import vectors

operations()  # registers the operations


def wrong_cases(op: str, engine: Engine) -> list[str]:
    found = vectors(op)
    wrong = []
    for row in found.document["cases"]:
        inputs = dict(case_of(row, found.tensors).inputs)
        with np.errstate(all="ignore"):
            got = engine(inputs, row["params"])  # type: ignore[arg-type]
        answers = got if isinstance(got, dict) else {next(iter(row["outputs"])): np.asarray(got)}
        wrong += [one.case for one in judge(row, found.tensors, answers) if one.wrong]
    return wrong


def test_every_fused_operation_has_a_second_implementation() -> None:
    import_members("lockstep.engine.ops.fused")  # independent of earlier tests
    assert HONEST.keys() == OPERATIONS.keys()


@pytest.mark.parametrize("op", HONEST)
def test_second_implementation_in_float32_passes(op: str) -> None:
    assert wrong_cases(op, HONEST[op]) == []


def with_params(op: str, **params: Any) -> Engine:
    return lambda i, p: HONEST[op](i, {**p, **params})


def other_pairs(op: str) -> Engine:
    other = {"half": "adjacent", "adjacent": "half"}
    return lambda i, p: HONEST[op](i, {**p, "pairs": other[p["pairs"]]})


def moved(op: str, param: str, by: int) -> Engine:
    return lambda i, p: HONEST[op](i, {**p, param: max(0, p[param] + by)})


def with_inputs(op: str, **change: Callable[[Inputs], Array]) -> Engine:
    return lambda i, p: HONEST[op]({**i, **{n: make(i) for n, make in change.items()}}, p)


def modulo_heads(i: Inputs, p: Params) -> F32:
    """Let head h read KV head h % kv_heads instead of the KV head of its group."""
    share = i["q"].shape[1] // i["k"].shape[1]
    return flash(
        {**i, "k": np.tile(i["k"], (1, share, 1, 1)), "v": np.tile(i["v"], (1, share, 1, 1))}, p
    )


def nan_softmax(i: Inputs, p: Params) -> F32:
    return softmax(i["x"])


def to_first_cell(i: Inputs, p: Params) -> Inputs:
    """Write every new row to the place of the first row, so that only the last row is kept."""
    out = {f"cache_{n}": i[f"cache_{n}"].copy() for n in "kv"}
    for name in "kv":
        for t in range(i["new_k"].shape[1]):
            out[f"cache_{name}"][:, p["cache_len"]] = i[f"new_{name}"][:, t]
    return out


def in_order_of_blocks(i: Inputs, p: Params) -> F32:
    tables = np.stack([np.arange(i["block_tables"].shape[1])] * len(i["block_tables"]))
    return paged({**i, "block_tables": tables}, p)


WRONG: dict[str, tuple[str, Engine]] = {
    "NaN where all is hidden": ("softmax_rows", nan_softmax),
    "a matrix loaded by columns": (
        "matmul",
        with_inputs("matmul", b=lambda i: i["b"].T.reshape(i["b"].shape)),
    ),
    "a norm without its weight": (
        "weighted_rms_norm",
        with_inputs("weighted_rms_norm", weight=lambda i: np.ones_like(i["weight"])),
    ),
    "a norm whose result is forgotten": ("weighted_rms_norm", lambda i, p: i["x"]),
    "a layer norm without the mean": (
        "affine_layer_norm",
        lambda i, p: rms(i["x"], i["gamma"], p["eps"]) + i["beta"],
    ),
    "the norm of x instead of the sum": (
        "fused_add_rms_norm",
        lambda i, p: {**add_norm(i, p), "y": rms(i["x"], i["weight"], p["eps"])},
    ),
    "a residual that is not updated": (
        "fused_add_rms_norm",
        lambda i, p: {**add_norm(i, p), "residual": i["residual"]},
    ),
    "rotation of the other pairs": ("apply_rotary_emb", other_pairs("apply_rotary_emb")),
    "rotation one position late": ("apply_rotary_emb", moved("apply_rotary_emb", "pos_offset", -1)),
    "rotation before the norm": (
        "qk_norm_rope",
        lambda i, p: heads(turn(i["x"], i, p), i["weight"], 1, {**i, "sin": i["sin"] * 0}, p),
    ),
    "tokens first where heads should be": (
        "qk_norm_rope",
        lambda i, p: HONEST["qk_norm_rope"](i, p).reshape(-1).reshape(i["x"].shape),
    ),
    "k and v of a fused QKV exchanged": (
        "split_qkv",
        lambda i, p: HONEST["split_qkv"](i, p) | {"k": HONEST["split_qkv"](i, p)["v"]},
    ),
    "a norm of the values too": (
        "split_qkv_norm_rope",
        lambda i, p: {**split_prepared(i, p), "v": heads(qkv(i, p)["v"], i["k_weight"], 1, i, p)},
    ),
    "a cache that keeps the last row only": ("kv_cache_append_head_major", to_first_cell),
    "rows one cell too far": (
        "split_qkv_norm_rope_into_cache",
        moved("split_qkv_norm_rope_into_cache", "cache_len", 1),
    ),
    "blocks in order": ("paged_decode_attention", in_order_of_blocks),
    "the cell behind the context": (
        "paged_decode_attention",
        with_inputs(
            "paged_decode_attention", context_lens=lambda i: np.minimum(i["context_lens"] + 1, 12)
        ),
    ),
    "a mask from the first row on": (
        "flash_attention",
        with_params("flash_attention", pos_offset=0),
    ),
    "no mask": ("flash_attention", with_params("flash_attention", causal=0)),
    "no window": ("flash_attention", with_params("flash_attention", window=0)),
    "heads that share the wrong keys": ("flash_attention", modulo_heads),
    "the scale forgotten": ("flash_attention", with_params("flash_attention", scale=1.0)),
    "latent scores without the rotated part": (
        "mla_attention",
        with_inputs("mla_attention", kv_rope=lambda i: i["kv_rope"] * 0),
    ),
    "shares that are always normed": (
        "route_topk_softmax",
        with_params("route_topk_softmax", norm_topk_prob=1),
    ),
    "shares that are never normed": (
        "route_topk_softmax",
        with_params("route_topk_softmax", norm_topk_prob=0),
    ),
    "the smallest experts": (
        "route_topk_softmax",
        lambda i, p: {**route(i, p), "ids": route({"logits": -i["logits"]}, p)["ids"]},
    ),
    "pairs counted by slots first": (
        "moe_buckets",
        with_inputs("moe_buckets", selected=lambda i: i["selected"].T),
    ),
    "a residual that is overwritten": (
        "weighted_sum_residual_stacked",
        lambda i, p: weigh(i["slots"], i["weights"]),
    ),
    "an offset that is not looked at": (
        "weighted_sum_batched_offset",
        with_params("weighted_sum_batched_offset", weights_offset=0),
    ),
    "gate and up exchanged": (
        "moe_gate_up_silu",
        with_inputs("moe_gate_up_silu", gate=lambda i: i["up"], up=lambda i: i["gate"]),
    ),
    "zeros of the other format": (
        "gemm_gptq",
        lambda i, p: gptq(i, {**p, "zero_offset": 1 - p["zero_offset"]}),
    ),
    "groups by place in spite of g_idx": (
        "gemm_gptq",
        lambda i, p: gptq({n: x for n, x in i.items() if n != "g_idx"}, p),
    ),
    "a sum that leaves out its own rank": (
        "all_reduce",
        lambda i, p: everywhere(reduced(i, p), len(i["x"])) - i["x"],
    ),
    "a mean that is a sum": (
        "all_reduce",
        lambda i, p: HONEST["all_reduce"](i, {"reduce": p["reduce"].replace("mean", "sum")}),
    ),
    "parts in another order": (
        "all_gather",
        with_inputs("all_gather", x=lambda i: np.roll(i["x"], 1, axis=0)),
    ),
    "a ring that turns the other way": ("send_recv", lambda i, p: ring(i, {"shift": -p["shift"]})),
    "the parts of the wrong rank": (
        "scatter_from_rank",
        with_params("scatter_from_rank", src_rank=0),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_found(name: str) -> None:
    op, engine = WRONG[name]
    assert wrong_cases(op, engine)


def test_unknown_operation_or_parameter_is_refused_with_the_known_names() -> None:
    with pytest.raises(Unsupported, match=r"no operation 'no_such'.*all_reduce"):
        operate("no_such", Call({}, {}))
    x = np.ones((2, 2), np.float32)
    with pytest.raises(Unsupported, match="known: sum, mean, max, min"):
        operate("all_reduce", Call({"x": x}, {"reduce": "product"}))
