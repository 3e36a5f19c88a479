"""The sizes of all acid models, and numbers that every weight format represents exactly."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of an acid model, named as in ggml.

    `squares`: the sum of a token's squares. It is 2 for the constant and one state, both 1, so a
    normalised 1 is sqrt(n_embd / 2). If tokens have more coordinates, the sum is larger, and
    includes eps for each element.
    """

    n_embd: int = 128
    n_layer: int = 2
    n_head: int = 4
    n_head_kv: int = 2
    n_embd_head: int = 32
    squares: float = 2.0
    n_ff: int = 32
    eps: float = 1e-5
    rope_base: float = 1000.0  # no engine's default, so that engines that ignore the key are found
    n_ctx: int = 1024
    n_expert: int = 0
    n_expert_used: int = 0
    halves: bool = False  # True: the file pairs elements half a head apart

    @property
    def unit(self) -> float:
        """Return the size of the constant after a norm, 8 in most models."""
        return float(np.sqrt(self.n_embd / self.squares))

    @property
    def group(self) -> int:
        """Return the number of query heads per KV head."""
        return self.n_head // self.n_head_kv

    @property
    def tiny(self) -> float:
        """Return the size of a token that is so short that eps is half of the sum in its norm's
        root."""
        return float(np.sqrt(self.eps * self.n_embd / 2))

    @staticmethod
    def pair(i: int) -> tuple[int, int]:
        """Return the two elements of a rotary pair in building order."""
        return 2 * i, 2 * i + 1

    @property
    def order(self) -> list[int]:
        """Return the building order's element for each place in the file's order of a head."""
        n = self.n_embd_head
        return [*range(0, n, 2), *range(1, n, 2)] if self.halves else list(range(n))

    def frequency(self, pair: int) -> float:
        """Return the angle in radians by which a rotary pair turns per position."""
        return float(self.rope_base ** (-2 * pair / self.n_embd_head))


def eight_bits(values: Any) -> F64:
    """Round to eight significant bits, which BF16, F16 and F32 represent exactly. So neither the
    type of a matrix nor the last bit of a cosine changes a right answer: no value is that close to
    a tie."""
    fraction, exponent = np.frexp(np.asarray(values, np.float64))
    rounded: F64 = np.ldexp(np.round(fraction * 256), exponent - 8)
    return rounded
