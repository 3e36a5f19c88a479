"""Engines whose guidance is wrong. Everything else in them is right, so self-tests of graphs do not
include them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.guidance import guide, log_softmax
from lockstep.engine.quants.base import F32
from lockstep.harness.adapters.reference import Reference

Mix = Callable[[F32, F32, float], NDArray[Any]]
Batches = Sequence[Batch]
Lead = Callable[[Batches, Batches], tuple[Batches, Batches]]
WRONG_GUIDANCE: dict[str, "type[WrongGuidance]"] = {}


class WrongGuidance(Reference):
    """The reference with a wrong formula (`mix`), or with wrong batches (`lead`)."""

    group: ClassVar[str] = "guidance"
    mistake: ClassVar[str]
    mix: ClassVar[tuple[Mix, ...]]
    lead: ClassVar[tuple[Lead, ...]]

    def guide(self, batches: Batches, negative: Batches, scale: float) -> tuple[F32, ...]:
        for lead in self.lead:
            batches, negative = lead(batches, negative)
        runs = [self.rows_behind(each) for each in (batches, negative)]
        mix = self.mix[0] if self.mix else guide
        return tuple(np.asarray(mix(a, b, scale), np.float32) for a, b in zip(*runs, strict=True))

    @classmethod
    def add_fault(
        cls, name: str, mistake: str, *, mix: Mix | None = None, lead: Lead | None = None
    ) -> None:
        """Register an engine with this mistake."""
        held: dict[str, Any] = {"__module__": cls.__module__, "mistake": mistake}
        held |= {"mix": (mix,) if mix else (), "lead": (lead,) if lead else ()}
        WRONG_GUIDANCE[f"mutant:{name}"] = type(name, (cls,), held, name=f"mutant:{name}")


def exponentials(logits: F32) -> NDArray[np.float64]:
    return np.exp(log_softmax(logits))


def mix_probabilities(logits: F32, negative: F32, scale: float) -> NDArray[Any]:
    a, b = exponentials(logits), exponentials(negative)
    return np.log(np.maximum(b + scale * (a - b), 1e-30))


def stay_behind(batches: Batches, negative: Batches) -> tuple[Batches, Batches]:
    """Decode only the prompt of the negative run, and use its last row for all steps."""
    first = negative[0]
    return batches, [first] * len(batches)


def share_positions(batches: Batches, negative: Batches) -> tuple[Batches, Batches]:
    """Give the tokens after the negative prompt the positions that they have after the normal
    prompt."""
    moved = (replace(n, positions=b.positions) for n, b in zip(negative, batches, strict=True))
    return batches, [negative[0], *list(moved)[1:]]


def lose_last_token(batches: Batches, negative: Batches) -> tuple[Batches, Batches]:
    ids = negative[0].tokens.tolist()[:-1]
    steps = [
        Batch.of(each.tokens.tolist(), start=len(ids) + i) for i, each in enumerate(negative[1:])
    ]
    return batches, [Batch.for_next(ids), *steps]


fault = WrongGuidance.add_fault
fault("guidance-reversed", "the two prompts are exchanged", mix=lambda a, b, s: guide(b, a, s))
fault(
    "guidance-from-prompt",
    "the difference is added to the prompt's log-probabilities",
    mix=lambda a, b, s: guide(a, b, s + 1),
)
fault("guidance-scale-halved", "half of the scale is used", mix=lambda a, b, s: guide(a, b, s / 2))
fault(
    "guidance-no-less-than-one",
    "a scale below 1 counts as 1",
    mix=lambda a, b, s: guide(a, b, max(s, 1.0)),
)
fault("guidance-off", "the prompt's own logits are returned", mix=lambda a, b, s: a)
fault("guidance-of-probabilities", "probabilities are mixed, not logarithms", mix=mix_probabilities)
fault("guidance-as-temperature", "logits are multiplied by the scale", mix=lambda a, b, s: a * s)
fault("guidance-stays-behind", "the negative run gets no further tokens", lead=stay_behind)
fault(
    "guidance-prompts-positions",
    "tokens after the negative prompt have the prompt's positions",
    lead=share_positions,
)
fault("guidance-token-lost", "the negative prompt lacks its last token", lead=lose_last_token)
