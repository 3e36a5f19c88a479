"""The sizes of all acid models, and numbers that every weight format holds exactly."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of an acid model, named as in ggml.

    Every token is as long as the constant and one state, both 1, so a normalised 1 is sqrt(n_embd /
    2); `squares` where it has more, with eps for each element.
    """

    n_embd: int = 128
    n_layer: int = 2
    n_head: int = 4
    n_head_kv: int = 2
    n_embd_head: int = 32
    squares: float = 2.0
    n_ff: int = 32
    eps: float = 1e-5
    rope_base: float = 1000.0  # no engine's default: who ignores the key is seen
    n_ctx: int = 1024
    n_expert: int = 0
    n_expert_used: int = 0
    halves: bool = False  # elements half a head apart turn together, in the file

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
        """Return the size of a token so short that eps is half of its norm's divisor."""
        return float(np.sqrt(self.eps * self.n_embd / 2))

    @staticmethod
    def pair(i: int) -> tuple[int, int]:
        """Return the two elements of a rotary pair while weights are built."""
        return 2 * i, 2 * i + 1

    @property
    def order(self) -> list[int]:
        """Return the element of a head in building order for each place of the file's order."""
        n = self.n_embd_head
        return [*range(0, n, 2), *range(1, n, 2)] if self.halves else list(range(n))

    def frequency(self, pair: int) -> float:
        """Return the radians by which a rotary pair turns from one position to the next."""
        return float(self.rope_base ** (-2 * pair / self.n_embd_head))


def eight_bits(values: Any) -> F64:
    """Round to eight significant bits, which BF16, F16 and F32 represent exactly. The type of a
    matrix then changes no right answer, and neither does the last bit of a cosine: none lies that
    near to a tie."""
    fraction, exponent = np.frexp(np.asarray(values, np.float64))
    rounded: F64 = np.ldexp(np.round(fraction * 256), exponent - 8)
    return rounded
