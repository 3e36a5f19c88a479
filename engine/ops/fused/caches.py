"""Writing keys and values into caches: contiguous cells with heads first, or blocks of a pool."""

from collections.abc import Callable

import numpy as np

from lockstep.engine.ops.fused.base import Call, Result, expect_copy, operation
from lockstep.engine.ops.fused.heads import split_and_prepared
from lockstep.engine.ops.near import F64, Expected

Write = Callable[[F64, F64], None]  # writes new rows (heads, tokens, dim) into a whole cache


def put(cache: F64, new: Result, write: Write) -> Expected:
    """Return the whole cache; unwritten cells must stay exactly as they were."""
    assert isinstance(new, Expected)
    value, allowed = cache.copy(), np.zeros(cache.shape)
    write(value, new.value)
    write(allowed, np.broadcast_to(np.asarray(new.allowed), new.value.shape))
    return Expected(value, allowed, new.reason)


def append_cells(call: Call) -> Write:
    """Return a write to (heads, capacity, dim), from `cache_len` on."""
    at = call.number("cache_len")

    def write(cache: F64, new: F64) -> None:
        cache[:, at : at + new.shape[1]] = new

    return write


def page_cells(call: Call) -> Write:
    """Return a write to a paged cache: (blocks, heads, block_size, dim).

    Cell c is cell c % block_size of block table[c // block_size].
    """
    table = call.inputs["block_table"]

    def write(pool: F64, new: F64) -> None:
        for token in range(new.shape[1]):
            block, cell = divmod(call.number("cache_len") + token, pool.shape[2])
            pool[table[block], :, cell] = new[:, token]

    return write


def store_caches(call: Call, write: Write) -> dict[str, Result]:
    found = split_and_prepared(call)
    return {
        "q": found["q"],
        "cache_k": put(call["cache_k"], found["k"], write),
        "cache_v": put(call["cache_v"], found["v"], write),
    }


@operation("kv_cache_append_head_major")
def kv_cache_append_head_major(call: Call) -> dict[str, Result]:
    write = append_cells(call)
    return {
        f"cache_{name}": put(call[f"cache_{name}"], expect_copy(call[f"new_{name}"]), write)
        for name in "kv"
    }


@operation("split_qkv_norm_rope_into_cache")
def split_qkv_norm_rope_into_cache(call: Call) -> dict[str, Result]:
    return store_caches(call, append_cells(call))


@operation("split_qkv_norm_rope_into_paged_cache")
def split_qkv_norm_rope_into_paged_cache(call: Call) -> dict[str, Result]:
    return store_caches(call, page_cells(call))


@operation("transpose_head_to_token")
def transpose_head_to_token(call: Call) -> dict[str, Result]:
    """Transpose (heads, tokens, dim) -> (tokens, heads, dim)."""
    return {"y": expect_copy(call.inputs["x"].transpose(1, 0, 2))}
