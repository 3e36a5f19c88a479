"""Measurement of the cost of capture. The same batches are decoded plainly, with an empty callback,
and with a capture."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from lockstep.engine.batch import Batch
from lockstep.harness.adapters.llama_cpp.capture import NodeWatch
from lockstep.harness.adapters.llama_cpp.faults import Injector
from lockstep.harness.adapters.llama_cpp.model import LlamaContext
from lockstep.harness.records import Nodes


class Nobody:
    """An observer that requests every node and reads none."""

    def wants(self, address: int) -> bool:
        return True

    def sees(self, address: int) -> None:
        pass


def time_capture(
    plain: LlamaContext,
    traced: LlamaContext,
    watched: tuple[LlamaContext, NodeWatch],
    batches: Sequence[Batch],
) -> dict[str, float]:
    """Return the seconds of all batches except the first, which is the prompt; or of the only
    batch. Each way to decode has its own entry."""
    context, watch = watched
    sizes: list[int] = []
    counts: list[int] = []

    def emit(nodes: Nodes) -> None:
        sizes.append(nodes.data.size)
        counts.append(int((nodes.place < 0).sum()))

    def begin() -> None:
        watch.hand_on()  # drops the values of the prompt
        sizes.clear()
        counts.clear()

    traced.observer = Nobody()
    try:
        found = {
            "plain": seconds(plain, batches, lambda _: None, lambda: None),
            "callback": seconds(traced, batches, lambda _: None, lambda: None),
        }
        watch.begin(emit, Injector(None))
        found["capture"] = seconds(context, batches, watch.begin_step, begin, watch.hand_on)
    finally:
        traced.observer = None
    return found | {
        "copy": copying(sum(sizes)),
        "nodes": float(sum(counts)),
        "bytes": float(sum(sizes)),
    }


def seconds(
    context: LlamaContext,
    batches: Sequence[Batch],
    before: Callable[[int], None],
    begin: Callable[[], None],
    end: Callable[[], None] = lambda: None,
) -> float:
    context.clear()
    untimed = min(1, len(batches) - 1)
    for step, batch in enumerate(batches):
        if step == untimed:
            begin()
            started = time.perf_counter()
        before(step)
        context.run(batch)
    end()
    return time.perf_counter() - started


def copying(size: int) -> float:
    """Return the seconds of a copy of this many bytes, between buffers that are already mapped."""
    source, target = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    started = time.perf_counter()
    np.copyto(target, source)
    return time.perf_counter() - started
