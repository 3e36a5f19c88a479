"""Mistakes in choosing the next token. Ops and logits are right."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, cast

import numpy as np

from lockstep.engine.batch import Batch
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.reference import I32, RopeParams
from lockstep.engine.quants.base import F32
from lockstep.harness.mutants.base import Mutant

FIRST = "text differs from the first token on, but the logits are right"


class WrongChoice(Mutant):
    """A greedy loop whose steps a subclass can make wrong."""

    group = "sampling"
    site = "decode"  # name of the suite, because no op is wrong
    layer = None
    row: ClassVar[int] = -1  # index in the rows of the prompt's logits

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        memory = self.loaded.new_memory()
        rows = self.loaded.decode(Batch.of(self.read(prompt)), memory)
        last, ids = rows[max(self.row, -len(rows))], list[int]()
        while len(ids) < n:
            ids.append(int(self.choose(last, ids)))
            if len(ids) < n:
                every = [*prompt, *ids]
                fed = Batch.of([self.fed(every)], start=len(every) - 1)
                last = self.loaded.decode(fed, memory)[-1]
        return ids

    def read(self, prompt: Sequence[int]) -> Sequence[int]:
        return prompt

    def fed(self, ids: Sequence[int]) -> int:
        return ids[-1]

    def choose(self, logits: F32, before: Sequence[int]) -> int:
        return int(np.argmax(logits))


WrongChoice.add_fault(
    "greedy-of-first-row",
    "the first token is chosen by the logits of the prompt's first row",
    "an answer begins with the wrong word",
    row=0,
)


WrongChoice.add_fault(
    "greedy-row-before",
    "the first token is chosen by the logits of the last token but one",
    FIRST,
    row=-2,
)
WrongChoice.add_fault(
    "greedy-last-of-prompt-lost",
    "the first token of the prompt is fed again in place of the last",
    FIRST,
    read=lambda self, prompt: [*prompt[:-1], prompt[0]],
)
WrongChoice.add_fault(
    "greedy-feeds-one-late",
    "the model gets the token before the one that was just chosen",
    "text differs from the second token on, but the logits are right",
    fed=lambda self, ids: ids[-2],
)


class Misplaced(Mirror):
    """Ops that use wrong positions in rope. `at` changes the positions."""

    at: Callable[[I32], I32] | None = None

    def rope(self, x: F32, positions: I32, params: RopeParams) -> F32:
        found = positions if self.at is None else self.at(positions)
        return super().rope(x, found, params)


class WrongPosition(WrongChoice):
    """A choice whose generated tokens have wrong positions. Only rope uses them, because the memory
    would notice gaps."""

    ops = Misplaced

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        ops = cast(Misplaced, self.loaded.ops)
        ops.at = partial(self.placed, len(prompt))
        try:
            return super().greedy(prompt, n)
        finally:
            ops.at = None

    def placed(self, n: int, positions: I32) -> I32:
        """Return the positions to use. `n` is the number of tokens in the prompt, whose positions
        are right."""
        raise NotImplementedError


WrongPosition.add_fault(
    "greedy-position-late",
    "positions of generated tokens are too large by one",
    "text drifts",
    source="onnxruntime-genai #2354",
    placed=lambda self, n, positions: np.where(positions < n, positions, positions + 1),
)
WrongChoice.add_fault(
    "greedy-second-best",
    "the second largest logit is chosen",
    "word salad",
    choose=lambda self, logits, before: int(np.argsort(-logits, kind="stable")[1]),
)
WrongChoice.add_fault(
    "greedy-of-magnitudes",
    "the logit of largest magnitude is chosen",
    "word salad",
    choose=lambda self, logits, before: int(np.argmax(np.abs(logits))),
)
WrongChoice.add_fault(
    "greedy-from-one",
    "the search for the largest logit begins at token 1",
    "no effect unless token 0 is due",
    shows_on="few-tokens",
    choose=lambda self, logits, before: 1 + int(np.argmax(logits[1:])),
)
WrongChoice.add_fault(
    "greedy-never-last",
    "the search for the largest logit ends one token early",
    "no effect unless the last token is due",
    shows_on="few-tokens",
    choose=lambda self, logits, before: int(np.argmax(logits[:-1])),
)
WrongChoice.add_fault(
    "greedy-of-one-byte",
    "the chosen id is stored in one byte",
    "word salad",
    choose=lambda self, logits, before: int(np.argmax(logits)) & 0xFF,
)


class Penalty(WrongChoice, name="mutant:greedy-with-penalty"):
    mistake = "generated tokens are penalised by 1.1, which nobody requested"
    effect = "the text does not repeat itself where it should"

    def choose(self, logits: F32, before: Sequence[int]) -> int:
        logits = logits.copy()
        known = np.unique(before).astype(int)
        logits[known] = np.where(logits[known] > 0, logits[known] / 1.1, logits[known] * 1.1)
        return int(np.argmax(logits))


class Sampled(WrongChoice, name="mutant:greedy-is-sampled"):
    mistake = "tokens are drawn by their probabilities though the temperature is 0"
    effect = "another text each time"

    def choose(self, logits: F32, before: Sequence[int]) -> int:
        shares = np.exp(logits.astype(np.float64) - logits.max())
        draw = np.random.Generator(np.random.Philox(len(before))).random()
        return int(np.searchsorted(np.cumsum(shares / shares.sum()), draw).clip(0, len(logits) - 1))


WrongChoice.add_fault(
    "greedy-of-rough-logits",
    "logits are cut to three bits after the first one before a token is chosen",
    "now and then another token, if two are about equally likely",
    choose=lambda self, logits, before: int(
        np.argmax((logits.view(np.uint32) & np.uint32(0xFFF00000)).view(np.float32))
    ),
)
WrongPosition.add_fault(
    "greedy-lacks-position",
    "all generated tokens are at one position",
    "the text repeats itself",
    placed=lambda self, n, positions: np.minimum(positions, n),
)
