"""Honest engines that compute rope angles differently, and everything else in float32."""

import numpy as np

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.near import F64
from lockstep.engine.ops.reference import I32, RopeParams
from lockstep.engine.ops.rotation import from_powers
from lockstep.harness.honest.base import HonestEngine


class WideAngles(Mirror):
    """Computes the angles of rope in float64, and everything else in float32."""

    def rotations(self, positions: I32, params: RopeParams) -> tuple[F64, F64]:
        cos, sin = (t.astype(np.float32) for t in from_powers(positions, params))
        return cos.astype(np.float64), sin.astype(np.float64)


# found in engines that compute their table of cosines once, in double precision
HonestEngine.add_design("rope-float64", "angles in float64", ops=WideAngles)


ONE = np.float32(1)


class InverseFrequency(Mirror):
    """Multiplies positions by inverse frequencies, in float32."""

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


# used by Hugging Face's LlamaRotaryEmbedding, and by llama2.c
HonestEngine.add_design(
    "rope-inverse-frequency",
    "float32 angles: position times 1 / base^(i / n)",
    ops=InverseFrequency,
)


class Power(Mirror):
    """Computes angles from powers of the ratio between neighbouring angles, and multiplies by the
    scale last."""

    def rotations(self, positions: I32, params: RopeParams) -> tuple[F64, F64]:
        step = np.float32(params.base) ** (np.float32(-2) / np.float32(params.n_rot))
        powers = step ** np.arange(params.n_rot // 2, dtype=np.float32)
        angles = positions.astype(np.float32)[:, None] * powers
        if params.factors is not None:
            angles /= params.factors
        scaled = angles * np.float32(params.scale)
        if params.kept is not None:  # scaling by YaRN
            scaled = scaled * (np.float32(1) - params.kept) + angles * params.kept
        magnitude = np.float32(params.magnitude)
        cos, sin = np.cos(scaled) * magnitude, np.sin(scaled) * magnitude
        return cos.astype(np.float64), sin.astype(np.float64)


# used by llama.cpp on CUDA (ggml-cuda/rope.cu)
HonestEngine.add_design("rope-power", "float32 angles: position times step^i", ops=Power)
