"""YaRN: fast pairs keep their frequency, slow pairs are slowed down; pairs in between get a mix.

From the published definition (Peng et al. 2023, YaRN: Efficient Context Window Extension;
LlamaYaRNScaledRotaryEmbedding of its code), with the settings of GGUF files: `beta_fast` 32,
`beta_slow` 1, and the ends of the ramp rounded to whole pairs.
"""

import math
from dataclasses import replace

import numpy as np

from lockstep.engine.errors import InvalidModel
from lockstep.engine.ops.reference import RopeParams
from lockstep.engine.quants.base import F32

BETA_FAST, BETA_SLOW = 32, 1  # numbers of rotations within the original context


def scale_rope(plain: RopeParams, attn_factor: float, n_ctx_orig: int) -> RopeParams:
    """Scale a rotation by YaRN. n_ctx_orig: the original context, or 0 for scaling other than
    YaRN."""
    if not n_ctx_orig:
        return plain if attn_factor == plain.magnitude else replace(plain, magnitude=attn_factor)
    longer = 1 / plain.scale
    grown = 1 + 0.1 * math.log(longer) if longer > 1 else 1.0
    kept = shares_kept(plain.n_rot, plain.base, n_ctx_orig)
    return replace(plain, kept=kept, magnitude=attn_factor * grown)


def shares_kept(n_rot: int, base: float, n_ctx_orig: int) -> F32:
    """Return how much of each frequency stays unscaled, (n_rot / 2,), from 1 (unchanged) to 0
    (scaled).
    """
    if n_ctx_orig < 0 or not 1 < base < math.inf:
        raise InvalidModel(f"YaRN is undefined for base {base} and a context of {n_ctx_orig}")

    def pair_of(turns: float) -> float:
        return n_rot * math.log(n_ctx_orig / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(0, math.floor(pair_of(BETA_FAST)))
    high = min(n_rot - 1, math.ceil(pair_of(BETA_SLOW)))
    along = (np.arange(n_rot // 2) - low) / max(0.001, high - low)
    kept: F32 = (1 - np.clip(along, 0, 1)).astype(np.float32)
    return kept
