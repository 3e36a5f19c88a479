"""Draws the tensors that are not used in products from the initial ranges of their architectures.

A factor near zero, where real files have values near one, would hide everything before it. The
layer would add almost nothing to the residual stream, and a fault in the layer would be smaller
than the noise of all other parts.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from lockstep.harness.synth.draws import uniform
from lockstep.harness.synth.generator import around_one

Values = NDArray[np.float32]
Draw = Callable[[Philox, int, int], Values]  # arguments: generator, number of rows, length of a row


def beyond_one(bits: Philox, n: int, row: int) -> Values:
    """Draw divisors of frequencies. The divisors are at least one, so that no angle becomes
    larger."""
    return np.float32(1) + np.abs(uniform(bits, n, 1.0))


def factors(bits: Philox, n: int, row: int) -> Values:
    return around_one(bits, n)


def decay(bits: Philox, n: int, row: int) -> Values:
    """Return -exp(A_log), so that a state never grows. In Mamba the states of a channel have -1,
    -2, and so on. In Mamba 2 and the gated delta rules each head has one number, uniform from -16
    to -1."""
    if row > 1 and n > row:
        return -np.resize(np.arange(1, row + 1, dtype=np.float32), n) * around_one(bits, n)
    return np.float32(-8.5) + between_ends(bits, n) * np.float32(7.5)


def step(bits: Philox, n: int, row: int) -> Values:
    """Return values from -6.9 to -2.3, so that their softplus is a time step from 0.001 to 0.1,
    uniform in the logarithm. The values are the logarithms of the time steps, which nearly equal
    the inverse softplus, so the bytes do not depend on a machine's exp."""
    return np.float32(-4.6) + between_ends(bits, n) * np.float32(2.3)


def between_ends(bits: Philox, n: int) -> Values:
    """Draw values uniformly from -1 to 1."""
    return uniform(bits, n, 3**-0.5)


PUBLISHED: tuple[tuple[str, Draw], ...] = (
    (r"\.ssm_a$", decay),
    (r"\.ssm_dt\.bias$", step),
    (r"\.ssm_d$", factors),  # weights of the connection that skips the states
    (r"norm.*weight$|norm$", factors),  # Plamo's norms have no suffix
    # scales of whole matrices, and of activations before the last matrix of MPT
    (r"\.(input_)?scale$|\.act\.scales$", factors),
    (r"^rope_f(reqs|actors_(long|short))\.weight$", beyond_one),
)


# architectures with another meaning of a name; None: drawn like a matrix
OTHERWISE: Mapping[str, tuple[tuple[str, Draw | None], ...]] = MappingProxyType(
    # here exp(A_log) multiplies the argument of a sigmoid, and the usual bias would shut every gate
    {"bailingmoe3": ((r"\.ssm_a$", factors), (r"\.ssm_dt\.bias$", None))}
)


def published_draw(name: str, arch: str) -> Draw | None:
    """Return the function that draws a tensor with its own range; None if the tensor is drawn in
    the same way as a matrix."""
    rules = (*OTHERWISE.get(arch, ()), *PUBLISHED)
    return next((draw for pattern, draw in rules if re.search(pattern, name)), None)
