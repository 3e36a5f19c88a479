"""Rules for batches: llama.cpp's rules in llama.cpp's order, each with a name.

Source: `llama_context::decode` and `llama_batch_allocr::init` (llama-batch.cpp, 0.3.36).
`UNCHECKED` names the rules that llama.cpp should check but does not; we refuse batches that break
them.
"""

from collections.abc import Callable

from lockstep.engine.memory.ubatch import Entries

SeqPos = Callable[[int], int]  # returns the smallest or largest position of a sequence; -1: none
UNCHECKED = ("no sequence", "negative position")  # our rules that llama.cpp lacks


def refusal(
    batch: Entries, *, n_vocab: int, n_seq_max: int, pos_min: SeqPos, pos_max: SeqPos
) -> str | None:
    """Return the name of the first rule that the batch breaks, or None."""
    if not batch:
        return "empty"
    if any(not 0 <= e.token < n_vocab for e in batch):
        return "token id"
    if any(not e.seqs for e in batch):
        return "no sequence"
    if any(not 0 <= s < n_seq_max for e in batch for s in e.seqs):
        return "sequence id"
    if any(e.pos < 0 for e in batch):
        return "negative position"
    return (
        broken_positions(batch, pos_max)
        or diverged_couples(batch, pos_min, pos_max)
        or broken_order(batch)
    )


def broken_positions(batch: Entries, pos_max: SeqPos) -> str | None:
    """Return the rule broken by a sequence that has a gap or does not continue at the next
    position.
    """
    for seq in sequences(batch):
        mine = {e.pos for e in batch if seq in e.seqs}
        last = pos_max(seq)
        if last >= 0 and min(mine) != last + 1:
            return "not consecutive"
        if max(mine) - min(mine) + 1 > len(mine):
            return "gap"
    return None


def diverged_couples(batch: Entries, pos_min: SeqPos, pos_max: SeqPos) -> str | None:
    """Return the rule broken by sequences that share a token but span different positions in
    memory.
    """
    for entry in batch:
        # a single sequence needs no comparison, which would read all cells
        if len(entry.seqs) > 1 and len({(pos_min(s), pos_max(s)) for s in entry.seqs}) > 1:
            return "diverged"
    return None


def broken_order(batch: Entries) -> str | None:
    """Return the rule broken by a sequence whose positions go back.

    llama.cpp also means to refuse tokens that share a sequence but have different other sequences.
    But its set of common sequences is never empty, so that rule never applies, and is left out
    here.
    """
    last: dict[int, int] = {}
    for entry in batch:
        for seq in sorted(entry.seqs):
            if entry.pos < last.get(seq, -1):
                return "decreasing"
            last[seq] = entry.pos
    return None


def sequences(batch: Entries) -> list[int]:
    return sorted({s for e in batch for s in e.seqs})
