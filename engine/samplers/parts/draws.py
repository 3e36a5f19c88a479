"""Random draws between 0 and 1: from llama.cpp's generator, or given numbers."""

import copy
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.samplers.parts.candidates import F

WORDS = 4294967296.0  # number of 32-bit words


class Draws(Protocol):
    """Source of the random numbers of a sampler."""

    def single(self) -> float:
        """Return a draw with the bits of a float32."""

    def double(self) -> float:
        """Return a draw with the bits of a float64."""

    def clone(self) -> Self: ...


class MersenneTwister:
    """A copy of std::mt19937 with libstdc++'s distributions. numpy's legacy seeding gives the same
    numbers.
    """

    def __init__(self, seed: int) -> None:
        self.bits = np.random.MT19937()
        self.bits._legacy_seeding(seed & 0xFFFFFFFF)

    def word(self) -> int:
        return int(self.bits.random_raw())

    def single(self) -> float:
        """Draw as std::uniform_real_distribution<float> does: one word, rounded to a float."""
        value = F(self.word()) / F(WORDS)
        return float(value if value < 1 else np.nextafter(F(1), F(0)))

    def double(self) -> float:
        """Draw as std::uniform_real_distribution<double> does: two words, the low word first."""
        low, high = self.word(), self.word()
        value = (float(low) + float(high) * WORDS) / (WORDS * WORDS)
        return value if value < 1 else float(np.nextafter(1.0, 0.0))

    def clone(self) -> "MersenneTwister":
        other = copy.copy(self)
        other.bits = np.random.MT19937()
        other.bits.state = self.bits.state
        return other


class GivenDraws:
    """Generator that returns one number until a caller sets another."""

    def __init__(self, value: float = 0.5) -> None:
        self.value = value

    def single(self) -> float:
        return self.value

    def double(self) -> float:
        return self.value

    def clone(self) -> "GivenDraws":
        return GivenDraws(self.value)


def choose(p: NDArray[np.float32], draws: Draws) -> int:
    """Return an index, drawn as std::discrete_distribution does. With one candidate, nothing is
    drawn.
    """
    if len(p) < 2:
        return 0
    wide = p.astype(np.float64)
    shares = np.add.accumulate(wide / np.add.accumulate(wide)[-1])
    shares[-1] = 1.0
    return int(np.searchsorted(shares, draws.double(), side="left"))
