"""The first answer that no right engine gives, reported while further questions run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite

from lockstep.harness.adapters.reference import Reference
from lockstep.harness.context.suite import Context
from lockstep.harness.diagnosis.asking import AskedQuestion
from lockstep.harness.diagnosis.differences import Difference, differences_in
from lockstep.harness.diagnosis.engines import Engines
from lockstep.harness.diagnosis.race import compare_answer


@dataclass(kw_only=True)
class FirstDifference:
    """Reports the first difference to `tell`. `engines` are the right engines, with ggml's
    roundings and without them."""

    context: Context
    engines: Sequence[Engines]
    aspect: str
    tell: Callable[[Difference], None]
    told: bool = False

    def __call__(self, one: AskedQuestion) -> None:
        if self.told:
            return
        noise = self.context.noise.relative if self.aspect == "runs" else 0.0
        if not isfinite(noise) or not self.differs(one, noise):
            return
        if self.aspect == "runs":
            noise = self.context.noise_on(self.context.batches)
        right = compare_answer(self.engines[0], Reference, one, noise)
        if right is not None and self.differs(one, noise):
            self.told = True
            answer = self.engines[0].answer(Reference, one.question)
            self.tell(next(differences_in(one, answer, right)))

    def differs(self, one: AskedQuestion, noise: float) -> bool:
        """Return True if neither right engine gives this answer."""
        found = (compare_answer(each, Reference, one, noise) for each in self.engines)
        return all(right is not None and not right.same.all() for right in found)
