"""Runs a schedule of decode calls and cache operations, with logits if there is a graph."""

from collections.abc import Sequence
from typing import Any

from lockstep.engine.errors import EngineError, InvalidBatch, NoRoom
from lockstep.engine.memory.base import Memory, SeenCells
from lockstep.engine.memory.decode import Compute, decode
from lockstep.engine.memory.ubatch import Entries, Entry, Ubatch, outputs_in_order
from lockstep.engine.quants.base import F32

INVALID, NO_ROOM = -1, 1  # results of llama_decode


def pad_context(n: int) -> int:
    """Pad a context to a multiple of 256 cells."""
    return -(-n // 256) * 256


class Schedule:
    """Run of a schedule on a memory. Each step returns an answer in the form of an adapter's."""

    def __init__(
        self, memory: Memory, compute: Compute | None, n_vocab: int, n_ubatch: int
    ) -> None:
        """Prepare the run. Without `compute`, answers have no logits."""
        self.memory, self.compute = memory, compute
        self.n_vocab, self.n_ubatch = n_vocab, n_ubatch
        self.saved: list[Any] = []

    def step(self, step: Sequence[Any]) -> dict[str, Any]:
        memory = self.memory
        memory.seen = SeenCells(watched=True)
        logits, batch = None, []
        if step[0] == "decode":
            batch = [Entry(t, p, frozenset(s), bool(out)) for t, p, s, out in step[1]]
            code, logits = self.decode(batch)
        else:
            code = self.operation(step)
        return {
            "code": code,
            "pos": [[memory.pos_min(s), memory.pos_max(s)] for s in range(memory.n_seq)],
            "ubatches": [show_ubatch(batch, ubatch) for ubatch in memory.seen.ubatches],
            "slots": memory.seen.slots,
            "order": outputs_in_order(batch, memory.seen.ubatches) if code == 0 else [],
            "logits": logits,
        }

    def decode(self, batch: Entries) -> tuple[int, F32 | None]:
        sizes = {"n_vocab": self.n_vocab, "n_ubatch": self.n_ubatch}
        try:
            return 0, decode(batch, self.memory, self.compute, **sizes)
        except InvalidBatch:
            return INVALID, None
        except NoRoom:
            return NO_ROOM, None

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
                raise EngineError(f"a schedule has no step {step!r:.80}")
        return 0


def show_ubatch(batch: Entries, ubatch: Ubatch) -> list[Any]:
    entries = [batch[at] for at in ubatch.order]
    rows = [[e.token, e.pos, sorted(e.seqs), e.output] for e in entries]
    return [ubatch.equal, ubatch.n_seqs, rows]
