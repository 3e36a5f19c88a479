"""Mistakes in scaled positions: YaRN, and the positions that Gemma 3 scales in some layers."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from lockstep.engine.architectures.positions import shares_kept
from lockstep.engine.ops.reference import I32, RopeParams
from lockstep.engine.quants.base import F32
from lockstep.harness.mutants.parts.mistakes import Mistake, Op

Params = Callable[[int], RopeParams]
LATER = "text is fine at first and falls apart the longer it gets"


class Yarn(Mistake):
    group = "rope"
    effect = LATER
    shows_on = "yarn"
    site = "Qcur_rope"

    def rope(self, right: Op, x: F32, at: I32, params: RopeParams) -> F32:
        return right(x, at, self.angles(params))

    def angles(self, params: RopeParams) -> RopeParams:
        raise NotImplementedError

    def ramp(self, params: RopeParams, n_ctx: int) -> F32:
        return shares_kept(params.n_rot, params.base, n_ctx)


class RampInverted(Yarn, name="mutant:yarn-ramp-inverted"):
    mistake = "fast pairs are scaled and slow ones kept"
    source = "llama.cpp #8676"

    def angles(self, params: RopeParams) -> RopeParams:
        assert params.kept is not None
        return replace(params, kept=1 - params.kept)


RampInverted.add_fault(
    "yarn-ramp-inverted-gpt-oss",
    "gpt-oss scales fast pairs and keeps slow ones",
    shows_on="arch:gpt-oss",
)
Yarn.add_fault(
    "yarn-ext-factor-ignored",
    "every pair is scaled, as in linear scaling",
    angles=lambda self, params: replace(params, kept=None),
)
Yarn.add_fault(
    "yarn-ignored",
    "no pair is scaled, and rotated values are not enlarged",
    source="mlxcel #1355",
    angles=lambda self, params: replace(params, kept=None, scale=1.0, magnitude=1.0),
)


class OriginalContextIgnored(Yarn, name="mutant:yarn-original-context-ignored"):
    mistake = "the ramp is that of the new context, not of the original context"

    def angles(self, params: RopeParams) -> RopeParams:
        n_ctx = self.loaded.graph.hparams.n_ctx_train
        return replace(params, kept=self.ramp(params, n_ctx))


OriginalContextIgnored.add_fault(
    "yarn-original-context-gpt-oss",
    "the ramp of gpt-oss uses the new context",
    shows_on="arch:gpt-oss",
)


class RampNotRounded(Yarn, name="mutant:yarn-ramp-not-rounded"):
    """The unrounded ramp of gpt-oss's training code, which a GGUF file cannot express."""

    mistake = "the ends of the ramp lie between pairs"
    shows_on = "arch:gpt-oss"

    def angles(self, params: RopeParams) -> RopeParams:
        hp = self.loaded.graph.hparams
        low, high = (
            params.n_rot
            * math.log(hp.n_ctx_orig_yarn / (turns * 2 * math.pi))
            / (2 * math.log(params.base))
            for turns in (32, 1)
        )
        along = (np.arange(params.n_rot // 2) - max(low, 0.0)) / (high - max(low, 0.0))
        return replace(params, kept=(1 - np.clip(along, 0, 1)).astype(np.float32))


class MagnitudeMissing(Yarn, name="mutant:yarn-magnitude-missing"):
    mistake = "rotated values are not enlarged as YaRN requires"

    def angles(self, params: RopeParams) -> RopeParams:
        return replace(params, magnitude=1.0)


MagnitudeMissing.add_fault(
    "yarn-magnitude-missing-gpt-oss",
    "gpt-oss does not enlarge rotated values as YaRN requires",
    shows_on="arch:gpt-oss",
)
Yarn.add_fault(
    "yarn-magnitude-twice",
    "the magnitude is applied twice to queries and keys",
    angles=lambda self, params: replace(params, magnitude=params.magnitude**2),
)


class MagnitudeOfRoot(Yarn, name="mutant:yarn-magnitude-of-context"):
    mistake = "the magnitude is the root of a logarithm, as in LongRoPE"

    def angles(self, params: RopeParams) -> RopeParams:
        n_ctx = self.loaded.graph.hparams.n_ctx_orig_yarn
        return replace(params, magnitude=math.sqrt(1 - math.log(params.scale) / math.log(n_ctx)))


Yarn.add_fault(
    "yarn-magnitude-of-deepseek2",
    "deepseek2's mscale of all dimensions is applied only to the rotated part",
    source="imp #880",
    shows_on="deepseek2-yarn",
    site="q_pe",
    angles=lambda self, params: replace(params, magnitude=1 - 0.1 * math.log(params.scale)),
)


# --- by layer -----------------------------------------------------------------------------------


class WrongGemma3(Mistake):
    group = "rope"
    effect = LATER
    source = "ollama #13452"
    shows_on = "gemma3-scaled"
    site = "Qcur_rope"

    def graph_rope_params(self, right: Params, layer: int = 0) -> RopeParams:
        raise NotImplementedError


WrongGemma3.add_fault(
    "rope-gemma3-bases-exchanged",
    "window layers rotate by the global base, and global layers by the local base",
    graph_rope_params=lambda self, right, layer=0: right(0 if layer == 5 else 5),
)
WrongGemma3.add_fault(
    "rope-gemma3-local-base-for-all",
    "all layers rotate by the local base",
    layer=5,
    graph_rope_params=lambda self, right, layer=0: right(0),
)
WrongGemma3.add_fault(
    "rope-gemma3-scale-for-all",
    "positions are scaled in layers with a window as well",
    graph_rope_params=lambda self, right, layer=0: replace(right(layer), scale=1 / 8),
)
WrongGemma3.add_fault(
    "rope-gemma3-scale-missing",
    "positions are not scaled in global layers",
    source="ollama #12348",
    layer=5,
    graph_rope_params=lambda self, right, layer=0: replace(right(layer), scale=1.0),
)
WrongGemma3.add_fault(
    "rope-gemma3-scale-unasked",
    "global layers are scaled by 8 although the file does not ask for it",
    shows_on="arch:gemma3",
    layer=5,
    graph_rope_params=lambda self, right, layer=0: (
        replace(right(layer), scale=1 / 8) if layer == 5 else right(layer)
    ),
)
