"""Second implementations of fused operations, in plain float32."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
Array = NDArray[Any]
Inputs = dict[str, Array]
Params = Mapping[str, Any]
Engine = Callable[[Inputs, Params], Any]
ONE = np.float32(1)


def f(x: float) -> np.float32:
    return np.float32(x)


def rms(x: F32, weight: F32, eps: float) -> F32:
    mean = (x * x).sum(axis=-1, keepdims=True, dtype=np.float32) / f(x.shape[-1])
    return x / np.sqrt(mean + f(eps)) * weight


def layer_norm(i: Inputs, p: Params) -> F32:
    off = i["x"] - i["x"].mean(axis=-1, keepdims=True, dtype=np.float32)
    variance = (off * off).mean(axis=-1, keepdims=True, dtype=np.float32)
    return off / np.sqrt(variance + f(p["eps"])) * i["gamma"] + i["beta"]


def add_norm(i: Inputs, p: Params) -> Inputs:
    residual = i["residual"] + i["x"]
    return {"residual": residual, "y": rms(residual, i["weight"], p["eps"])}


def turn(x: F32, i: Inputs, p: Params) -> F32:
    """Rotate pairs by multiplying complex numbers. x: (tokens, heads, dim)."""
    at = p["pos_offset"] + np.arange(len(x))
    unit = (i["cos"][at] + 1j * i["sin"][at])[:, None].astype(np.complex64)
    out, half = x.copy(), x.shape[-1] // 2
    if p["pairs"] == "half":
        z = (x[..., :half] + 1j * x[..., half:]) * unit
        out[..., :half], out[..., half:] = z.real, z.imag
    else:
        z = (x[..., ::2] + 1j * x[..., 1::2]) * unit
        out[..., ::2], out[..., 1::2] = z.real, z.imag
    return out


def heads(x: F32, weight: F32, mode: int, i: Inputs, p: Params) -> F32:
    x = rms(x, weight, p["eps"]) if mode == 1 else x
    return (turn(x, i, p) if mode else x).transpose(1, 0, 2)


def qkv(i: Inputs, p: Params) -> dict[str, F32]:
    dim, n, m = p["head_dim"], p["q_heads"], p["kv_heads"]
    rows = i["qkv"].reshape(len(i["qkv"]), -1, dim)
    return {"q": rows[:, :n], "k": rows[:, n : n + m], "v": rows[:, n + m :]}


def split_prepared(i: Inputs, p: Params) -> dict[str, F32]:
    found, mode = qkv(i, p), p["qk_mode"]
    out = {name: heads(found[name], i[f"{name}_weight"], mode, i, p) for name in "qk"}
    return {**out, "v": found["v"].transpose(1, 0, 2)}


def into_cache(i: Inputs, p: Params) -> Inputs:
    new, at = split_prepared(i, p), p["cache_len"]
    out: Inputs = {"q": new["q"]}
    for name in "kv":
        out[f"cache_{name}"] = i[f"cache_{name}"].copy()
        out[f"cache_{name}"][:, at : at + new[name].shape[1]] = new[name]
    return out


def into_pages(i: Inputs, p: Params) -> Inputs:
    new, size = split_prepared(i, p), i["cache_k"].shape[2]
    out: Inputs = {"q": new["q"]}
    for name in "kv":
        pool = i[f"cache_{name}"].copy()
        for t in range(new[name].shape[1]):
            cell = p["cache_len"] + t
            pool[i["block_table"][cell // size], :, cell % size] = new[name][:, t]
        out[f"cache_{name}"] = pool
    return out


def append(i: Inputs, p: Params) -> Inputs:
    at, n = p["cache_len"], i["new_k"].shape[1]
    parts = {name: (i[f"cache_{name}"], i[f"new_{name}"]) for name in "kv"}
    return {
        f"cache_{name}": np.concatenate([old[:, :at], new, old[:, at + n :]], axis=1)
        for name, (old, new) in parts.items()
    }


def softmax(s: F32) -> F32:
    powers = np.exp(s - s.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True, dtype=np.float32)


def attend(q: F32, k: F32, v: F32, at: int, scale: float, *, window: int = 0) -> F32:
    """Attend for one query at position `at`; a negative `at` means after all cells."""
    last = len(k) if at < 0 else at + 1
    first = max(0, last - window) if window else 0
    s = np.array(
        [f(scale) * (q * cell).sum(dtype=np.float32) for cell in k[first:last]], np.float32
    )
    return (softmax(s)[:, None] * v[first:last]).sum(axis=0, dtype=np.float32)


def flash(i: Inputs, p: Params) -> F32:
    q, out = i["q"], np.zeros(i["q"].shape, np.float32)
    share = q.shape[1] // i["k"].shape[1]
    for b, h, t in np.ndindex(q.shape[:3]):
        at = p["pos_offset"] + t if p["causal"] else -1
        k, v = i["k"][b, h // share], i["v"][b, h // share]
        out[b, h, t] = attend(q[b, h, t], k, v, at, p["scale"], window=p["window"])
    return out


def paged(i: Inputs, p: Params) -> F32:
    q = i["q"][:, :, None] if p["q_len"] == 1 else i["q"][None]
    out = np.zeros(q.shape, np.float32)
    share, size = q.shape[1] // i["k_pool"].shape[1], i["k_pool"].shape[2]
    for s, h, t in np.ndindex(q.shape[:3]):
        cells = range(int(i["context_lens"][s]) - q.shape[2] + t + 1)
        table = i["block_tables"][s]
        k, v = (
            np.stack([i[f"{n}_pool"][table[c // size], h // share, c % size] for c in cells])
            for n in "kv"
        )
        out[s, h, t] = attend(q[s, h, t], k, v, -1, p["scale"])
    return out[:, :, 0] if p["q_len"] == 1 else out[0]


def mla(i: Inputs, p: Params) -> F32:
    q, c, r = i["q"], i["kv_compressed"], i["kv_rope"]
    out = np.zeros((*q.shape[:3], c.shape[-1]), np.float32)
    for b, h, t in np.ndindex(q.shape[:3]):
        n = p["pos_offset"] + t + 1
        latent, turned = np.split(q[b, h, t], [c.shape[-1]])
        s = f(p["scale"]) * (c[b, :n] @ latent + r[b, :n] @ turned)
        out[b, h, t] = softmax(s) @ c[b, :n]
    return out


def route(i: Inputs, p: Params) -> Inputs:
    shares, k = softmax(i["logits"]), p["top_k"]
    ids = np.argsort(-i["logits"], axis=-1, kind="stable")[:, :k]
    weights = np.take_along_axis(shares, ids, axis=-1)
    if p["norm_topk_prob"]:
        weights = weights / weights.sum(axis=-1, keepdims=True, dtype=np.float32)
    return {"ids": ids.astype(np.int32), "weights": weights}


def buckets(i: Inputs, p: Params) -> Inputs:
    """Fill the buckets in reverse order, because the order in a bucket is free."""
    flat = i["selected"].reshape(-1)
    ids = np.full((p["num_experts"], flat.size), -1, np.int32)
    tpe = np.zeros(p["num_experts"], np.int32)
    for pair in range(flat.size - 1, -1, -1):
        ids[flat[pair], tpe[flat[pair]]] = pair
        tpe[flat[pair]] += 1
    return {"ids": ids, "tpe": tpe}


def weigh(slots: F32, weights: F32) -> F32:
    out = np.zeros((*slots.shape[:-2], slots.shape[-1]), np.float32)
    for slot in range(slots.shape[-2]):
        out += weights[..., slot, None] * slots[..., slot, :]
    return out


def weigh_at(i: Inputs, p: Params) -> F32:
    slots, out, to = i["slots"], i["out"].copy(), p["out_offset"]
    n = slots.shape[0] * slots.shape[1]
    rows = i["weights"][p["weights_offset"] :][:n].reshape(slots.shape[:2])
    out[to : to + slots.shape[0] * slots.shape[2]] = weigh(slots, rows).reshape(-1)
    return out


def weigh_norm(i: Inputs, p: Params) -> Inputs:
    residual = i["residual"] + weigh(i["slots"], i["weights"])
    return {"residual": residual, "y": rms(residual, i["weight"], p["eps"])}


def gate_up(i: Inputs, p: Params) -> F32:
    out = np.zeros((*i["ids"].shape, i["gate"].shape[1]), np.float32)
    for t, s in np.ndindex(i["ids"].shape):
        gate, up = (i[name][i["ids"][t, s]] @ i["x"][t] for name in ("gate", "up"))
        out[t, s] = gate / (ONE + np.exp(-gate)) * up
    return out


def gptq(i: Inputs, p: Params) -> F32:
    """Decode one weight at a time."""
    bits, k, n = p["bits"], i["x"].shape[1], i["scales"].shape[1]
    per, mask = 32 // p["bits"], (1 << p["bits"]) - 1
    w = np.zeros((k, n), np.float32)
    for row, column in np.ndindex(k, n):
        g = int(i["g_idx"][row]) if "g_idx" in i else row // p["group_size"]
        q = int(i["qweight"][row // per, column]) >> bits * (row % per) & mask
        zero = int(i["qzeros"][g, column // per]) >> bits * (column % per) & mask
        w[row, column] = f(q - zero - p["zero_offset"]) * i["scales"][g, column]
    return i["x"] @ w


def everywhere(x: Array, ranks: int) -> Array:
    return np.stack([x] * ranks)


def reduced(i: Inputs, p: Params) -> F32:
    """Reduce around the ring of ranks, beginning with the last rank."""
    x = i["x"][::-1]
    if p["reduce"] in ("max", "min"):
        return np.asarray(getattr(x, p["reduce"])(axis=0))
    total = x[0].copy()
    for row in x[1:]:
        total += row
    return total / f(len(x)) if p["reduce"] == "mean" else total


def ring(i: Inputs, p: Params) -> Array:
    ranks = len(i["x"])
    return np.stack([i["x"][(rank - p["shift"]) % ranks] for rank in range(ranks)])


def gathered(i: Inputs, p: Params) -> Array:
    out = i["before"].copy()
    out[p["dst_rank"]] = np.concatenate(list(i["x"]))
    return out


def sliced(i: Inputs, p: Params) -> Array:
    out, n = i["dst"].copy(), p["len"]
    for at in range(n):
        out[p["dst_offset"] + at] = i["src"][p["src_offset"] + at]
    return out


def rows_softmax(i: Inputs, p: Params) -> F32:
    """Compute a softmax that is uniform if all entries are hidden, as in the samplers of small
    engines."""
    out = np.empty_like(i["x"])
    for row, x in enumerate(i["x"]):
        out[row] = f(1 / len(x)) if np.isneginf(x).all() else softmax(x)
    return out


# an engine with one result returns the array itself
HONEST: dict[str, Engine] = {
    "matmul": lambda i, p: i["a"] @ i["b"],
    "add_scalar": lambda i, p: i["x"] + f(p["s"]),
    "scaled_add": lambda i, p: i["y"] + f(p["scale"]) * i["x"],
    "rsqrt_elem": lambda i, p: ONE / np.sqrt(i["x"]),
    "sum_squares_axis": lambda i, p: (i["x"] * i["x"]).sum(axis=p["axis"], dtype=np.float32),
    "broadcast_row_scalars": lambda i, p: np.stack([i["x"]] * p["width"], axis=1),
    "transpose_2d": lambda i, p: i["x"].T,
    "slice_cols": lambda i, p: i["x"][:, p["start"] : p["end"]],
    "copy_slice": sliced,
    "softmax_rows": rows_softmax,
    "weighted_rms_norm": lambda i, p: rms(i["x"], i["weight"], p["eps"]),
    "affine_layer_norm": layer_norm,
    "fused_add_rms_norm": add_norm,
    "apply_rotary_emb": lambda i, p: turn(i["x"], i, p),
    "qk_norm_rope": lambda i, p: heads(i["x"], i["weight"], p["mode"], i, p),
    "split_qkv": lambda i, p: {n: x.reshape(len(x), -1) for n, x in qkv(i, p).items()},
    "split_qkv_norm_rope": split_prepared,
    "split_qkv_norm_rope_into_cache": into_cache,
    "split_qkv_norm_rope_into_paged_cache": into_pages,
    "kv_cache_append_head_major": append,
    "transpose_head_to_token": lambda i, p: i["x"].swapaxes(0, 1),
    "flash_attention": flash,
    "paged_decode_attention": paged,
    "mla_attention": mla,
    "route_topk_softmax": route,
    "moe_buckets": buckets,
    "weighted_sum_stacked": lambda i, p: weigh(i["slots"], i["weights"]),
    "weighted_sum_batched": lambda i, p: weigh(i["slots"], i["weights"]),
    "weighted_sum_batched_offset": weigh_at,
    "weighted_sum_residual_stacked": lambda i, p: i["residual"] + weigh(i["slots"], i["weights"]),
    "weighted_sum_residual_norm_stacked": weigh_norm,
    "moe_gate_up_silu": gate_up,
    "gemm_gptq": gptq,
    "all_reduce": lambda i, p: everywhere(reduced(i, p), len(i["x"])),
    "reduce_scatter": lambda i, p: reduced(i, p).reshape(len(i["x"]), -1),
    "all_gather": lambda i, p: everywhere(np.concatenate(list(i["x"])), len(i["x"])),
    "broadcast": lambda i, p: everywhere(i["x"][p["src_rank"]], len(i["x"])),
    "all_to_all": lambda i, p: np.stack([i["x"][:, rank] for rank in range(len(i["x"]))]),
    "send_recv": ring,
    "gather_to_rank": gathered,
    "scatter_from_rank": lambda i, p: np.stack(np.split(i["x"][p["src_rank"]], len(i["x"]))),
}
