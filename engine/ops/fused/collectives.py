"""Operations of several ranks. Inputs and results hold all ranks: (ranks, ..), one row a rank.

A sum over ranks may be taken in any order, but every rank must end with a sum within the bound.
"""

import numpy as np

from lockstep.engine.errors import Unsupported
from lockstep.engine.ops.fused.base import Call, Result, expect_copy, operation
from lockstep.engine.ops.near import Expected, constant, exact, total

EXACT_ONES = {"max": np.max, "min": np.min}


def reduce_ranks(call: Call) -> Expected:
    """Reduce over ranks to (length)."""
    x, op = call["x"], str(call.params["reduce"])
    if op in EXACT_ONES:
        return expect_copy(EXACT_ONES[op](call.inputs["x"], axis=0))
    if op not in ("sum", "mean"):
        raise Unsupported(f"no reduction {op!r} (known: sum, mean, max, min)")
    near = total(exact(x), len(x) - 1, axis=0, keep=False)
    if op == "mean":
        near = near / constant(len(x))
    return near.expect("summed over ranks in any order")


def for_all(found: Expected, ranks: int) -> Expected:
    value = np.repeat(found.value[None], ranks, axis=0)
    return Expected(value, np.broadcast_to(np.asarray(found.allowed), value.shape), found.reason)


@operation("all_reduce")
def all_reduce(call: Call) -> dict[str, Result]:
    return {"y": for_all(reduce_ranks(call), len(call.inputs["x"]))}


@operation("reduce_scatter")
def reduce_scatter(call: Call) -> dict[str, Result]:
    """Reduce over ranks; rank r keeps part r of the result: (ranks, length / ranks)."""
    found, ranks = reduce_ranks(call), len(call.inputs["x"])
    value = found.value.reshape(ranks, -1)
    allowed = np.broadcast_to(np.asarray(found.allowed), found.value.shape)
    return {"y": Expected(value, allowed.reshape(value.shape), found.reason)}


@operation("all_gather")
def all_gather(call: Call) -> dict[str, Result]:
    """Give every rank the parts of all ranks, in their order: (ranks, ranks * length)."""
    x = call.inputs["x"]
    return {"y": expect_copy(np.repeat(x.reshape(1, -1), len(x), axis=0))}


@operation("broadcast")
def broadcast(call: Call) -> dict[str, Result]:
    x = call.inputs["x"]
    return {"y": expect_copy(np.repeat(x[None, call.number("src_rank")], len(x), axis=0))}


@operation("all_to_all")
def all_to_all(call: Call) -> dict[str, Result]:
    """Exchange parts: part j of rank i becomes part i of rank j: (ranks, ranks, length)."""
    return {"y": expect_copy(call.inputs["x"].swapaxes(0, 1))}


@operation("send_recv")
def send_recv(call: Call) -> dict[str, Result]:
    """Let each rank send its data to the rank `shift` places further in the ring."""
    return {"y": expect_copy(np.roll(call.inputs["x"], call.number("shift"), axis=0))}


@operation("gather_to_rank")
def gather_to_rank(call: Call) -> dict[str, Result]:
    """Gather all parts at one rank; other ranks keep their buffers: (ranks, ranks * length)."""
    x, out = call.inputs["x"], call.inputs["before"].copy()
    out[call.number("dst_rank")] = x.reshape(-1)
    return {"y": expect_copy(out)}


@operation("scatter_from_rank")
def scatter_from_rank(call: Call) -> dict[str, Result]:
    """Scatter one rank's data, part r to rank r: x (ranks, ranks * length) -> (ranks, length)"""
    x = call.inputs["x"]
    return {"y": expect_copy(x[call.number("src_rank")].reshape(len(x), -1))}
