"""Raises the step between neighbouring angles to a power, in float32, and scales the angle last."""

import numpy as np

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.near import F64
from lockstep.engine.ops.reference import I32, RopeParams
from lockstep.harness.honest.base import HonestEngine


class Power(Mirror):
    def rotations(self, positions: I32, params: RopeParams) -> tuple[F64, F64]:
        step = np.float32(params.base) ** (np.float32(-2) / np.float32(params.n_rot))
        powers = step ** np.arange(params.n_rot // 2, dtype=np.float32)
        angles = positions.astype(np.float32)[:, None] * powers
        if params.factors is not None:
            angles /= params.factors
        scaled = angles * np.float32(params.scale)
        if params.kept is not None:  # YaRN
            scaled = scaled * (np.float32(1) - params.kept) + angles * params.kept
        magnitude = np.float32(params.magnitude)
        cos, sin = np.cos(scaled) * magnitude, np.sin(scaled) * magnitude
        return cos.astype(np.float64), sin.astype(np.float64)


class RopePower(HonestEngine, name="honest:rope-power"):
    """llama.cpp itself on CUDA (ggml-cuda/rope.cu)."""

    ops = Power
    design = "float32 angles: position times step^i"
