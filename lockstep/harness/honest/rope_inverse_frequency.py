"""Multiplies positions by inverse frequencies, in float32."""

import numpy as np

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.near import F64
from lockstep.engine.ops.reference import I32, RopeParams
from lockstep.harness.honest.base import HonestEngine

ONE = np.float32(1)


class InverseFrequency(Mirror):
    def rotations(self, positions: I32, params: RopeParams) -> tuple[F64, F64]:
        exponents = np.arange(0, params.n_rot, 2, dtype=np.float32) / np.float32(params.n_rot)
        frequencies = ONE / np.float32(params.base) ** exponents
        scale = np.float32(params.scale)
        frequencies *= scale if params.kept is None else scale * (ONE - params.kept) + params.kept
        if params.factors is not None:
            frequencies /= params.factors
        angles = positions.astype(np.float32)[:, None] * frequencies
        magnitude = np.float32(params.magnitude)
        cos, sin = np.cos(angles) * magnitude, np.sin(angles) * magnitude
        return cos.astype(np.float64), sin.astype(np.float64)


class RopeInverseFrequency(HonestEngine, name="honest:rope-inverse-frequency"):
    """Hugging Face's LlamaRotaryEmbedding, and llama2.c."""

    ops = InverseFrequency
    design = "float32 angles: position times 1 / base^(i / n)"
