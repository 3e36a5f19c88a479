"""The greedy loop gone wrong: what is fed, and whose logits are looked at."""

from collections.abc import Sequence

import numpy as np

from lockstep.engine.batch import Batch
from lockstep.engine.quants.base import F32
from lockstep.harness.mutants.parts.mistakes import Mistake


class Loop(Mistake):
    """`choose` is what is made of the logits; no op is wrong."""

    group = "sampling"
    effect = "text differs from the first token on, and the logits are right"
    site = "decode"
    layer = None

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        memory, ids = self.loaded.new_memory(), list(prompt)
        logits = self.loaded.decode(self.first(ids), memory)
        while True:
            ids.append(self.choose(logits, ids))
            if len(ids) == len(prompt) + n:
                return ids[len(prompt) :]
            fed = self.fed(ids)
            logits = self.loaded.decode(Batch.of([fed], start=len(ids) - 1), memory)

    def first(self, prompt: Sequence[int]) -> Batch:
        return Batch.of(prompt)

    def fed(self, ids: Sequence[int]) -> int:
        return ids[-1]

    def choose(self, logits: F32, ids: Sequence[int]) -> int:
        return int(np.argmax(logits[-1]))


Loop.add_fault(
    "greedy-last-of-prompt-lost",
    "the last token of the prompt is fed as the first one again",
    first=lambda self, prompt: Batch.of([*prompt[:-1], prompt[0]]),
)
Loop.add_fault(
    "greedy-row-before",
    "the first token is chosen by the logits of the last but one",
    choose=lambda self, logits, ids: int(np.argmax(logits[-2 if len(logits) > 1 else -1])),
)
Loop.add_fault(
    "greedy-feeds-one-late",
    "the token before the one that was just chosen is fed",
    "text differs from the second token on, and the logits are right",
    fed=lambda self, ids: ids[-2],
)
