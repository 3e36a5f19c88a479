"""Runs a schedule of decode calls and cache operations, with numbers if a graph has them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from engine.batch import Batch
from engine.batch_rules import refusal
from engine.cell_cache import CellCache, Placement
from engine.errors import EngineError, Unsupported
from engine.hparams import Metadata, architecture_name
from engine.kv_cache import KvCache
from engine.memory import Attention, Memory, Seen
from engine.memory_hybrid import Hybrid
from engine.memory_recurrent import Recurrent
from engine.memory_window import Window
from engine.quants.base import F32
from engine.ubatch import Entries, Entry, Ubatch, outputs_in_order

INVALID, NO_ROOM = -1, 1  # what llama_decode returns
RECURRENT = ("mamba", "mamba2", "rwkv6", "rwkv7", "arwkv7", "rwkv6qwen2")
HYBRID = ("lfm2",)
WINDOWED = ("gemma2", "gemma3", "cohere2", "olmo2")  # with llama.cpp's pair of caches
Compute = Callable[[Batch, KvCache], F32]


def memory_shape(
    metadata: Metadata, plan: Mapping[str, Any]
) -> tuple[type[Memory], dict[str, Any]]:
    """Which memory a model has, and how large it is for a plan. Raises Unsupported."""
    arch, n_seq, unified = architecture_name(metadata), plan["n_seq"], plan["unified"]
    if arch in RECURRENT:
        return Recurrent, {"n_seq": n_seq}
    size = padded(plan["n_ctx"] if unified else plan["n_ctx"] // n_seq)
    shape = {"size": size, "n_seq": n_seq, "unified": unified}
    if f"{arch}.attention.sliding_window" not in metadata:
        return Hybrid if arch in HYBRID else Attention, shape
    if arch not in WINDOWED:
        raise Unsupported(f"how {arch} keeps its window is not known (known: {WINDOWED})")
    window = int(metadata[f"{arch}.attention.sliding_window"].data)
    return Window, {**shape, "window": window, "n_ubatch": plan["n_ubatch"]}


def padded(n: int) -> int:
    """A context has a multiple of 256 cells."""
    return -(-n // 256) * 256


class Schedule:
    """One memory from its first step to its last; each step's answer as an adapter gives it."""

    def __init__(
        self, memory: Memory, compute: Compute | None, n_vocab: int, n_ubatch: int
    ) -> None:
        """Without `compute` there are no logits; with it, the memory is a CellCache."""
        self.memory, self.compute = memory, compute
        self.n_vocab, self.n_ubatch = n_vocab, n_ubatch
        self.saved: list[Any] = []

    def step(self, step: Sequence[Any]) -> dict[str, Any]:
        memory = self.memory
        memory.seen = Seen()
        logits, batch = None, []
        if step[0] == "decode":
            batch = [Entry(t, p, frozenset(s), bool(out)) for t, p, s, out in step[1]]
            code, logits = self.decode(batch)
        else:
            code = self.operation(step)
        return {
            "code": code,
            "pos": [[memory.pos_min(s), memory.pos_max(s)] for s in range(memory.n_seq)],
            "ubatches": [shown(batch, ubatch) for ubatch in memory.seen.ubatches],
            "slots": memory.seen.slots,
            "order": outputs_in_order(batch, memory.seen.ubatches) if code == 0 else [],
            "logits": logits,
        }

    def decode(self, batch: Entries) -> tuple[int, F32 | None]:
        memory = self.memory
        if refusal(
            batch,
            n_vocab=self.n_vocab,
            n_seq_max=memory.n_seq,
            pos_min=memory.pos_min,
            pos_max=memory.pos_max,
        ):
            return INVALID, None
        memory.settle()
        places = memory.place(batch, self.n_ubatch)
        if places is None:
            return NO_ROOM, None
        rows = []
        for placed in places:
            memory.apply(batch, placed)
            if self.compute is not None and isinstance(memory, CellCache):
                part = plain(batch, placed.ubatch)
                rows.append(self.compute(part, Placement(memory, batch, placed)))
        if self.compute is None or not isinstance(memory, CellCache):
            return 0, None
        return 0, self.in_order(batch, [p.ubatch for p in places], np.concatenate(rows))

    def in_order(self, batch: Entries, ubatches: Sequence[Ubatch], rows: F32) -> F32:
        """Outputs as the batch has them, not as they were computed."""
        return rows[np.argsort(outputs_in_order(batch, ubatches), kind="stable")]

    def operation(self, step: Sequence[Any]) -> int:
        memory = self.memory
        match list(step):
            case ["rm", seq, p0, p1]:
                return int(memory.seq_rm(seq, p0, p1))
            case ["cp", source, to, p0, p1]:
                memory.seq_cp(source, to, p0, p1)
            case ["keep", seq]:
                memory.seq_keep(seq)
            case ["add", seq, p0, p1, delta]:
                memory.seq_add(seq, p0, p1, delta)
            case ["div", seq, p0, p1, d]:
                memory.seq_div(seq, p0, p1, d)
            case ["clear"]:
                memory.clear()
            case ["save", seq]:
                self.saved.append(memory.save(seq))
                return 1
            case ["load", seq, k]:
                return int(memory.load(seq, self.saved[k]))
            case _:
                raise EngineError(f"no step of a schedule is {step!r:.80}")
        return 0


def plain(batch: Entries, ubatch: Ubatch) -> Batch:
    """The tokens of an ubatch as a graph takes them; of several sequences it is told one."""
    entries = [batch[at] for at in ubatch.order]
    return Batch(
        tokens=np.array([e.token for e in entries], np.int32),
        positions=np.array([e.pos for e in entries], np.int32),
        seq_ids=np.array([min(e.seqs) for e in entries], np.int32),
        outputs=np.array([e.output for e in entries], np.bool_),
    )


def shown(batch: Entries, ubatch: Ubatch) -> list[Any]:
    entries = [batch[at] for at in ubatch.order]
    rows = [[e.token, e.pos, sorted(e.seqs), e.output] for e in entries]
    return [ubatch.equal, ubatch.n_seqs, rows]
