"""Cases of attention as engines offer it, mixtures of experts, GPTQ, and ranks."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from lockstep.golden.ops.form import Array, Case, SeededInputs, cases
from lockstep.harness.synth.draws import octets, stream

SCALE = 0.25


@cases("flash_attention")
def attention(op: str, draw: SeededInputs) -> Iterator[Case]:
    def case(
        name: str, batch: int, heads: tuple[int, int], tokens: int, cells: int, **more: int
    ) -> Case:
        dim = 16
        inputs = {"q": draw(f"{name}-q", batch, heads[0], tokens, dim)}
        inputs |= {n: draw(f"{name}-{n}", batch, heads[1], cells, dim) for n in "kv"}
        params = {"scale": SCALE, "causal": 1, "window": 0, "pos_offset": cells - tokens}
        return Case(id=name, inputs=inputs, params={**params, **more})

    yield case("one-cell", 1, (1, 1), 1, 1)
    yield case("prompt", 1, (4, 4), 5, 5)
    yield case("shared-heads", 2, (6, 2), 3, 3)
    yield case("decode", 1, (4, 2), 1, 19)
    yield case("behind-a-cache", 1, (4, 2), 3, 11)
    yield case("cells-after-the-last-token", 1, (4, 2), 2, 9, pos_offset=3)
    yield case("window", 1, (4, 2), 4, 12, window=3)
    yield case("not-causal", 2, (2, 2), 3, 7, causal=0)
    large = case("large-scores", 1, (2, 2), 2, 6)
    yield Case(
        id=large.id, inputs={**large.inputs, "q": large.inputs["q"] * 100}, params=large.params
    )


@cases("paged_decode_attention")
def paged_cases(op: str, draw: SeededInputs) -> Iterator[Case]:
    """Yield cases whose pool has large values after the context, which must not affect the
    result."""
    tables = np.array([[4, 1, 5], [2, 0, 0], [3, 6, 0]], np.int32)
    for name, lengths, tokens in (
        *(("three-sequences", [11, 1, 8], 1), ("full-blocks", [12, 4, 8], 1)),
        *(("a-prompt", [10], 4), ("a-prompt-from-the-start", [5], 5)),
    ):
        pools = {f"{n}_pool": draw(f"{name}-{n}", 7, 2, 4, 8) for n in "kv"}
        for i, length in enumerate(lengths):
            for cell in range(length, tables.shape[1] * 4):
                block = int(tables[i, cell // 4])
                if cell // 4 < -(-length // 4):
                    for pool in pools.values():
                        pool[block, :, cell % 4] = 1e4
        shape = (len(lengths), 4, 8) if tokens == 1 else (4, tokens, 8)
        inputs: dict[str, Array] = {"q": draw(f"{name}-q", *shape), **pools}
        inputs["block_tables"] = tables[: len(lengths)]
        inputs["context_lens"] = np.array(lengths, np.int32)
        yield Case(id=name, inputs=inputs, params={"scale": SCALE, "q_len": tokens})


@cases("mla_attention")
def latent(op: str, draw: SeededInputs) -> Iterator[Case]:
    rank, rope = 12, 4
    for name, batch, tokens, cells in (("decode", 2, 1, 7), ("prompt", 1, 4, 4), ("more", 1, 2, 9)):
        inputs = {
            "q": draw(f"{name}-q", batch, 3, tokens, rank + rope),
            "kv_compressed": draw(f"{name}-c", batch, cells, rank),
            "kv_rope": draw(f"{name}-r", batch, cells, rope),
        }
        yield Case(id=name, inputs=inputs, params={"scale": SCALE, "pos_offset": cells - tokens})


@cases("route_topk_softmax")
def routing(op: str, draw: SeededInputs) -> Iterator[Case]:
    rows = {
        "random": (draw("random", 4, 8, size=2.0), 3),
        "all-experts": (draw("all", 2, 5), 5),
        "one-expert": (draw("one", 3, 8), 1),
        "ties": (np.round(draw("ties", 4, 8)), 2),
        "all-alike": (np.zeros((1, 6), np.float32), 2),
        "one-wins": (np.array([[50.0, 0.0, -20.0, 3.0], [1e4, -1e4, 9990.0, 0.0]], np.float32), 2),
    }
    for name, (logits, k) in rows.items():
        for norm, word in ((1, "normed"), (0, "as-they-are")):
            params = {"top_k": k, "norm_topk_prob": norm}
            yield Case(id=f"{name}-{word}", inputs={"logits": logits}, params=params)


@cases("moe_buckets")
def buckets(op: str, draw: SeededInputs) -> Iterator[Case]:
    rows = {
        "several": np.array([[0, 3], [3, 1], [0, 3], [4, 0]], np.int32),
        "all-to-one": np.full((3, 1), 2, np.int32),
        "one-token": np.array([[4, 1, 0]], np.int32),
    }
    for name, selected in rows.items():
        yield Case(id=name, inputs={"selected": selected}, params={"num_experts": 5})


@cases(
    "weighted_sum_stacked", "weighted_sum_residual_stacked", "weighted_sum_residual_norm_stacked"
)
def weighted_cases(op: str, draw: SeededInputs) -> Iterator[Case]:
    for slots, hidden in ((1, 7), (3, 33), (8, 16)):
        tag = f"{slots}-slots"
        inputs = {"slots": draw(tag, slots, hidden), "weights": draw(f"{tag}-weights", slots)}
        params: dict[str, float] = {}
        if "residual" in op:
            inputs["residual"] = draw(f"{tag}-residual", hidden, size=3.0)
        if "norm" in op:
            inputs["weight"], params = 1 + draw(f"{tag}-norm", hidden, size=0.2), {"eps": 1e-6}
        yield Case(id=tag, inputs=inputs, params=params)


@cases("weighted_sum_batched", "weighted_sum_batched_offset")
def weighted_rows(op: str, draw: SeededInputs) -> Iterator[Case]:
    for tokens, k, hidden in ((1, 1, 5), (3, 2, 17), (2, 8, 4)):
        tag = f"{tokens}-tokens-{k}"
        slots, weights = draw(tag, tokens, k, hidden), draw(f"{tag}-weights", tokens, k)
        if op == "weighted_sum_batched":
            yield Case(id=tag, inputs={"slots": slots, "weights": weights})
            continue
        around = np.r_[draw(f"{tag}-before", 3), weights.reshape(-1), draw(f"{tag}-after", 2)]
        out = draw(f"{tag}-out", tokens * hidden + 6)
        inputs = {"slots": slots, "weights": around, "out": out}
        yield Case(id=tag, inputs=inputs, params={"weights_offset": 3, "out_offset": 4})


@cases("moe_gate_up_silu")
def gated_cases(op: str, draw: SeededInputs) -> Iterator[Case]:
    for tokens, ids in (("one", [[2, 0]]), ("several", [[0, 1], [3, 3], [2, 1]])):
        inputs = {
            "x": draw(f"{tokens}-x", len(ids), 24),
            "gate": draw(f"{tokens}-gate", 4, 7, 24, size=0.4),
            "up": draw(f"{tokens}-up", 4, 7, 24, size=0.4),
            "ids": np.array(ids, np.int32),
        }
        yield Case(id=f"{tokens}-tokens", inputs=inputs)


@cases("gemm_gptq")
def gptq(op: str, draw: SeededInputs) -> Iterator[Case]:
    k, n = 64, 16

    def words(name: str, count: int) -> Array:
        return octets(stream(draw.seed, f"ops.{op}.{name}"), 4 * count).view("<i4").astype(np.int32)

    for name, bits, group, more in (
        *(("four-bits", 4, 32, {}), ("eight-bits", 8, 32, {}), ("two-bits", 2, 16, {})),
        *(("one-group", 4, 64, {}), ("zeros-as-they-are", 4, 32, {"zero_offset": 0})),
        ("inputs-in-another-order", 4, 16, {"by": "g_idx"}),
    ):
        groups = k // group
        inputs: dict[str, Any] = {
            "x": draw(f"{name}-x", 3, k),
            "qweight": words(f"{name}-q", k * bits // 32 * n).reshape(-1, n),
            "scales": np.abs(draw(f"{name}-scales", groups, n, size=0.01)) + np.float32(1e-3),
            "qzeros": words(f"{name}-z", groups * n * bits // 32).reshape(groups, -1),
        }
        if "by" in more:
            inputs["g_idx"] = draw.ids(f"{name}-g", groups, k)
        params = {"bits": bits, "group_size": group, "zero_offset": 1}
        if "zero_offset" in more:
            params["zero_offset"] = 0
        yield Case(id=name, inputs=inputs, params=params)


@cases("all_reduce", "reduce_scatter")
def reductions(op: str, draw: SeededInputs) -> Iterator[Case]:
    for ranks in (1, 2, 5):
        for reduce in ("sum", "mean", "max", "min"):
            tag = f"{reduce}-of-{ranks}"
            x = draw(tag, ranks, ranks * 3, size=10.0)
            yield Case(id=tag, inputs={"x": x}, params={"reduce": reduce})
    x = np.array([[1e30, 1.0, -0.0], [-1e30, 1e-7, 0.0], [1.0, -1.0, 0.0]], np.float32)
    yield Case(id="cancelling", inputs={"x": x}, params={"reduce": "sum"})


@cases("all_gather", "broadcast", "all_to_all", "send_recv", "gather_to_rank", "scatter_from_rank")
def moves(op: str, draw: SeededInputs) -> Iterator[Case]:
    for ranks in (1, 2, 5):
        tag, last = f"{ranks}-ranks", ranks - 1
        if op == "all_to_all":
            yield Case(id=tag, inputs={"x": draw(tag, ranks, ranks, 3)})
        elif op == "scatter_from_rank":
            inputs = {"x": draw(tag, ranks, ranks * 3)}
            yield Case(id=tag, inputs=inputs, params={"src_rank": last})
        elif op == "gather_to_rank":
            inputs = {"x": draw(tag, ranks, 3), "before": draw(f"{tag}-b", ranks, ranks * 3)}
            yield Case(id=tag, inputs=inputs, params={"dst_rank": last})
        else:
            more = {"broadcast": {"src_rank": last}, "send_recv": {"shift": 2}}
            yield Case(id=tag, inputs={"x": draw(tag, ranks, 4)}, params=more.get(op, {}))
