"""Splits of decode calls in a context with the older sequence-aware batch.

The memory of such a context is not modelled, because its rules for cells and positions differed
from today's.
"""

from collections.abc import Sequence
from typing import Any

from lockstep.engine.errors import Unsupported
from lockstep.engine.memory.sbatch import SbatchToken, sbatch_equal, sbatch_seq, sbatch_simple
from lockstep.engine.memory.schedule import INVALID, show_ubatch
from lockstep.engine.memory.ubatch import Entry, Ubatch, outputs_in_order

# simple: attention; equal: recurrent models; seq: recurrent models with pooled embeddings
SPLITS = {"simple": sbatch_simple, "equal": sbatch_equal, "seq": sbatch_seq}


class SbatchSchedule:
    """Schedule of llama_sbatch: returns the answer of each step, with None for parts not
    modelled."""

    def __init__(self, split: str, n_vocab: int, n_ubatch: int) -> None:
        if split not in SPLITS:
            raise Unsupported(f"llama_sbatch has no split {split!r} (known: {', '.join(SPLITS)})")
        self.form, self.n_vocab, self.n_ubatch = SPLITS[split], n_vocab, n_ubatch
        self.all_outputs = split == "seq"  # pooling needs the outputs of all tokens

    def step(self, step: Sequence[Any]) -> dict[str, Any]:
        if step[0] != "decode":
            raise Unsupported("only decode calls are modelled for llama_sbatch")
        rows = step[1]
        unseen = dict.fromkeys(("pos", "slots", "order", "logits"))
        answer: dict[str, Any] = {"code": 0, "ubatches": [], **unseen}
        if not rows or not all(0 <= row[0] < self.n_vocab for row in rows):
            return answer | {"code": INVALID}
        ubatches = self.ubatches([SbatchToken(pos, tuple(seqs)) for _, pos, seqs, _ in rows])
        batch = [Entry(t, p, frozenset(s), out or self.all_outputs) for t, p, s, out in rows]
        return answer | {
            "ubatches": [show_ubatch(batch, ubatch) for ubatch in ubatches],
            "order": self.order(outputs_in_order(batch, ubatches)),
        }

    def ubatches(self, tokens: Sequence[SbatchToken]) -> list[Ubatch]:
        return self.form(tokens, self.n_ubatch)

    def order(self, outputs: list[int]) -> list[int]:
        """Return the tokens with outputs, in the order of computation."""
        return outputs
