"""Decodes a batch with a memory: refuses or splits it, and places and computes each ubatch."""

from collections.abc import Callable, Mapping

import numpy as np

from lockstep.engine.batch import Batch
from lockstep.engine.errors import InvalidBatch, NoRoom
from lockstep.engine.memory.base import LayerView, Memory, SeenCells
from lockstep.engine.memory.batch_rules import refusal
from lockstep.engine.memory.ubatch import Entries, Entry, Ubatch, outputs_in_order
from lockstep.engine.quants.base import F32

# computes an ubatch; returns (outputs, vocabulary)
Compute = Callable[[Batch, Mapping[int, LayerView]], F32]


def decode(
    batch: Entries, memory: Memory, compute: Compute | None, *, n_vocab: int, n_ubatch: int
) -> F32 | None:
    """Return the rows of `compute` in the order of the batch; None without `compute` (only
    positions).

    Raises InvalidBatch or NoRoom; the memory is then unchanged.
    """
    memory.seen = SeenCells(watched=memory.seen.watched)
    rule = refusal(
        batch,
        n_vocab=n_vocab,
        n_seq_max=memory.n_seq,
        pos_min=memory.pos_min,
        pos_max=memory.pos_max,
    )
    if rule is not None:
        raise InvalidBatch(rule)
    memory.settle()
    places = memory.place(batch, n_ubatch)
    if places is None:
        raise NoRoom(f"the memory has no room for a batch of {len(batch)} tokens; raise n_ctx")
    rows = []
    for placed, ubatch in zip(places, memory.seen.ubatches[-len(places) :], strict=True):
        memory.apply(batch, placed)
        if compute is not None:
            rows.append(compute(part(batch, ubatch), memory.views(batch, placed)))
    if compute is None:
        return None
    found = np.concatenate(rows)
    order = np.array(outputs_in_order(batch, memory.seen.ubatches[-len(places) :]))
    # the rows are already in order; pooled embeddings have no rows for tokens
    if (np.diff(order) > 0).all():
        return found
    return found[np.argsort(order, kind="stable")]


def entries_of(batch: Batch) -> list[Entry]:
    rows = zip(batch.tokens, batch.positions, batch.seq_ids, batch.outputs, strict=True)
    return [Entry(int(t), int(p), frozenset({int(s)}), bool(out)) for t, p, s, out in rows]


def part(batch: Entries, ubatch: Ubatch) -> Batch:
    """Return the tokens of an ubatch as a graph takes them, each with its lowest sequence id."""
    entries = [batch[at] for at in ubatch.order]
    return Batch(
        tokens=np.array([e.token for e in entries], np.int32),
        positions=np.array([e.pos for e in entries], np.int32),
        seq_ids=np.array([min(e.seqs) for e in entries], np.int32),
        outputs=np.array([e.output for e in entries], np.bool_),
    )
