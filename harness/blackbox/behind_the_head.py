"""Operations on logits after the head: a factor and a cap, as in llama.cpp for each
architecture."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.ops.near import U
from lockstep.harness.blackbox.slices import architecture, number

SCALE, CAP = "logit_scale", "final_logit_softcapping"  # names of keys
# logit before the cap, as a multiple of the cap; beyond it, at most about a thousandth of a change
# is left after the cap
FLAT = 4.0
# rounding errors: three products, and a tanh that is off by at most two units in the last place
ROUNDINGS = 8
# architectures whose logits are multiplied by the scale, divided by it, or capped. The numbers are
# the defaults of a missing key; other architectures ignore the key.
TIMES_SCALE = {
    **dict.fromkeys(("cohere2", "cohere2moe", "command-r", "muse-glimmer", "talkie"), 1.0),
    "grok": 3**-0.5,
}
# embedding size of the smallest model; llama.cpp uses it as the default of the key
MINICPM_WIDTH = 256
BY_SCALE = ("granite", "granitemoe", "granitehybrid", "granite_swa", "graniteswitch", "minicpm")
CAPS = {
    **dict.fromkeys(("gemma2", "gemma3n", "gemma4", "muse-glimmer"), 30.0),
    **dict.fromkeys(("gemma3", "grok"), 0.0),
}


def scale_of(file: GgufFile) -> float:
    """Return the factor that multiplies the logits. A factor of zero in the file means one."""
    arch = architecture(file)
    if arch in TIMES_SCALE:
        return float(number(file, SCALE, TIMES_SCALE[arch]) or 1.0)
    of_width = MINICPM_WIDTH / number(file, "embedding_length", MINICPM_WIDTH)
    if arch == "minicpm3":
        return float(of_width)
    if arch not in BY_SCALE:
        return 1.0
    return 1 / float(number(file, SCALE, of_width if arch == "minicpm" else 1.0) or 1.0)


def cap_of(file: GgufFile) -> float:
    """Return the cap of the logits, or 0 if there is no cap."""
    arch = architecture(file)
    return float(number(file, CAP, CAPS[arch])) if arch in CAPS else 0.0


def hidden_by(cap: float, logits: NDArray[Any]) -> int:
    """Return how many logits are so near the cap that their values before capping cannot be
    seen."""
    return int(np.count_nonzero(np.abs(logits) > abs(cap) * np.tanh(FLAT))) if cap else 0


def as_logits(
    scale: float, cap: float, value: NDArray[np.float64], allowed: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the logits computed from the head's output, and the largest error of an honest
    engine."""
    if scale == 1 and not cap:
        return value, allowed
    value, allowed = value * scale, allowed * abs(scale)
    if cap:
        value = cap * np.tanh(value / cap)
    return value, allowed + ROUNDINGS * U * np.abs(value)
