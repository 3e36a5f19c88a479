"""Examples of blocks that two engines decode differently, alone or next to another block."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.quants.base import F32, Bytes, WeightFormat
from lockstep.harness.context.runner import Session
from lockstep.harness.context.suite import no_answer
from lockstep.harness.fuzzers.quants.blocks import Blocks
from lockstep.harness.fuzzers.quants.differences import Differences, alike, in_words, symptom_of
from lockstep.harness.fuzzers.quants.small_blocks import block_in_words, fields_used, shrink_block
from lockstep.harness.records import Answered, Outcome

SAME = ("", "nan-sign")


@dataclass(frozen=True, eq=False)
class Example:
    """A block that two engines decode differently, shrunk as far as possible."""

    case: int
    original: Bytes
    block: Bytes
    symptom: str
    fields: str
    expected: F32
    actual: F32
    beside: tuple[Bytes, ...] = ()  # both blocks, if the difference depends on a neighbour

    @property
    def key(self) -> str:
        return f"{self.fields}/{self.symptom}"

    @property
    def size(self) -> tuple[int, int]:
        return int(np.count_nonzero(self.block)), self.case

    def in_words(self, kind: type[WeightFormat]) -> str:
        if self.symptom == "unsteady":
            return "differed only once: the answer depends on more than the bytes"
        text = in_words(self.symptom, self.expected, self.actual)
        return text if self.beside else f"{block_in_words(kind, self.block)}: {text}"


def decoded_by(session: Session, kind: type[WeightFormat], raw: Bytes) -> F32:
    """Return all weights as a flat array. Raises NoAnswer if the engine gives no such answer."""
    outcome: Outcome = session.ask("dequantize", kind.name, raw)
    if not isinstance(outcome, Answered):
        raise no_answer(session.name, "dequantize", outcome)
    values: F32 = outcome.value
    return values


@dataclass(frozen=True)
class Examiner:
    """Asks the oracle and one other engine about single blocks."""

    kind: type[WeightFormat]
    oracle: Session
    other: Session

    def both(self, blocks: Blocks) -> tuple[F32, F32]:
        """Return the blocks as both engines decode them, each (blocks, weights)."""
        raw, n = blocks.reshape(-1), self.kind.weights
        return (
            decoded_by(self.oracle, self.kind, raw).reshape(-1, n),
            decoded_by(self.other, self.kind, raw).reshape(-1, n),
        )

    def symptom(self, block: Bytes) -> str:
        expected, actual = self.both(block[None])
        return symptom_of(expected[0], actual[0])

    def example(self, case: int, blocks: Blocks, i: int) -> Example:
        """Return an example for block i of the blocks that were decoded together."""
        first = self.symptom(blocks[i])
        if first == "":
            return self.beside(case, blocks, i)

        def shows(blocks: Blocks) -> NDArray[np.bool_]:
            rows = zip(*self.both(blocks), strict=True)
            return np.array([alike(first, symptom_of(x, y)) for x, y in rows])

        small = shrink_block(self.kind, blocks[i].copy(), shows)
        expected, actual = self.both(small[None])
        symptom = symptom_of(expected[0], actual[0])
        if symptom == "":  # the block differed only together with others
            return self.beside(case, blocks, i)
        return Example(
            case=case,
            original=blocks[i].copy(),
            block=small,
            symptom=symptom,
            fields="+".join(fields_used(self.kind, small)) or "zeros",
            expected=expected[0],
            actual=actual[0],
        )

    def beside(self, case: int, blocks: Blocks, i: int) -> Example:
        """Return an example for a block that both engines decode to the same values if it is alone.
        Neighbours are tried, including a block of zeros, to find one that changes the result."""
        block, zeros = blocks[i].copy(), np.zeros_like(blocks[i])
        around = [(zeros, block), (block, zeros)]
        around += [(blocks[j], blocks[j + 1]) for j in (i, i - 1) if 0 <= j < len(blocks) - 1]
        found: tuple[Bytes, ...] = ()
        for two in around:
            expected, actual = (x.reshape(-1) for x in self.both(np.stack(two)))
            if Differences.between(expected, actual, 1).values.size:
                found = tuple(each.copy() for each in two)
                break
        return Example(
            case=case,
            original=block,
            block=block,
            symptom="neighbours" if found else "unsteady",
            fields="block",
            expected=expected,
            actual=actual,
            beside=found,
        )
