"""Mistakes in the cells that attention sees: the mask, hidden cells, windows."""

from dataclasses import asdict, replace
from typing import Any

import numpy as np

from lockstep.engine.architectures.gpt_oss import GptOssHparams
from lockstep.engine.ops.reference import Bools
from lockstep.engine.quants.base import F32
from lockstep.harness.mutants.parts.mistakes import Mistake, Op

VAGUE = "text is fluent but off topic"
NONSENSE = "text is nonsense from the second token on"
FORGETS = "what was said earlier is forgotten or mixed up"


class WrongMask(Mistake):
    group = "attention"
    effect = VAGUE
    site = "kq_soft_max"


# --- mask ---------------------------------------------------------------------------------------


class Mask(WrongMask):
    """A wrong attention mask. `mask` changes which cells each token sees: (tokens, cells)."""

    def soft_max(self, right: Op, x: F32, scale: float, visible: Bools | None) -> F32:
        return right(x, scale, None if visible is None else self.mask(visible))

    def mask(self, visible: Bools) -> Bools:
        raise NotImplementedError


def shift_rows(visible: Bools, by: int) -> Bools:
    """Return the mask in which each row sees the cells that the row `by` rows later should see."""
    cells = visible.shape[1]
    last = np.where(visible.any(axis=1), cells - 1 - visible[:, ::-1].argmax(axis=1), -1) + by
    out: Bools = np.arange(cells) <= last[:, None]
    return out


Mask.add_fault(
    "mask-not-itself",
    "a token sees earlier tokens but not itself",
    NONSENSE,
    mask=lambda self, visible: shift_rows(visible, -1),
)
Mask.add_fault(
    "mask-sees-the-next",
    "a token of the prompt also sees the next token",
    "fine to read, but scores of a text are far too good",
    mask=lambda self, visible: shift_rows(visible, 1),
)
Mask.add_fault(
    "mask-missing",
    "nothing is masked: tokens see later tokens and other sequences",
    "fine to read, but scores of a text are far too good",
    mask=lambda self, visible: np.ones_like(visible),
)
Mask.add_fault(
    "mask-from-the-left",
    "row i of any batch sees the first i + 1 cells",
    "the prompt is understood, but generated tokens see only its first token",
    mask=lambda self, visible: np.tri(*visible.shape, dtype=np.bool_),
)
Mask.add_fault(
    "mask-of-second-batch",
    "after a filled cache, row i of several tokens sees only the first i + 1 cells",
    "the second question of a conversation is answered wrongly",
    mask=lambda self, visible: (
        np.tri(*visible.shape, dtype=np.bool_) if len(visible) > 1 else visible
    ),
)


class SecondUnmasked(Mask, name="mutant:mask-missing-in-second-batch"):
    mistake = "several tokens after a filled cache see each other"
    effect = "the second question of a conversation is answered wrongly"

    def mask(self, visible: Bools) -> Bools:
        n, cells = visible.shape
        return np.ones_like(visible) if n < cells else visible


class ComparedAsTexts(Mask, name="mutant:mask-positions-as-texts"):
    mistake = "positions are compared as texts: 10 comes before 9"
    effect = "fluent up to ten tokens, then what came last is forgotten"

    def mask(self, visible: Bools) -> Bools:
        cells = visible.shape[1]
        last = cells - 1 - visible[:, ::-1].argmax(axis=1)
        out: Bools = np.arange(cells).astype(str) <= last[:, None].astype(str)
        return out


WrongMask.add_fault(
    "mask-hidden-as-zero",
    "a hidden score is made zero instead of minus infinity",
    VAGUE,
    soft_max=lambda self, right, x, scale, visible: right(
        x if visible is None else np.where(visible, x, np.float32(0)), scale, None
    ),
)


class HiddenAfterwards(WrongMask, name="mutant:mask-after-softmax"):
    mistake = "hidden cells count in the sum, and are made zero after it"
    effect = VAGUE

    def soft_max(self, right: Op, x: F32, scale: float, visible: Bools | None) -> F32:
        out = right(x, scale, None)
        return out if visible is None else out * visible


class HiddenByTen(WrongMask, name="mutant:mask-of-minus-ten"):
    mistake = "hidden scores are ten lower, which is not enough"
    effect = VAGUE

    def soft_max(self, right: Op, x: F32, scale: float, visible: Bools | None) -> F32:
        lower = 0 if visible is None else np.where(visible, 0, -10 / scale)
        return right((x + lower).astype(np.float32), scale, None)


class PaddingCounted(WrongMask, name="mutant:mask-padding-counted"):
    mistake = "cells up to the next multiple of 32 are added to the sum with a score of zero"
    source = "lucebox #128"

    def soft_max(self, right: Op, x: F32, scale: float, visible: Bools | None) -> F32:
        if visible is None:
            return right(x, scale, visible)
        more = -x.shape[-1] % 32
        wide = np.pad(x, ((0, 0), (0, 0), (0, more)))
        seen = np.pad(visible, ((0, 0), (0, more)), constant_values=True)
        return right(wide, scale, seen)[..., : x.shape[-1]]


WrongMask.add_fault(
    "mask-causal-bert",
    "tokens of an encoder see only earlier tokens",
    "embeddings of sentences are poor; searches miss",
    shows_on="arch:bert",
    soft_max=lambda self, right, x, scale, visible: right(
        x, scale, np.tri(*x.shape[-2:], dtype=np.bool_)
    ),
)


# --- windows ------------------------------------------------------------------------------------


class WrongWindow(WrongMask):
    effect = FORGETS
    shows_on = "arch:gemma2"


class WindowIgnored(WrongWindow, name="mutant:window-ignored"):
    mistake = "layers with a window see all tokens"
    source = "mistral.rs #246"

    def numbers(self, hparams: Any) -> Any:
        return replace(hparams, n_swa=0)


WindowIgnored.add_fault(
    "window-ignored-gpt-oss",
    "layers of gpt-oss with a window see all tokens",
    source="litgpt #2153",
    shows_on="arch:gpt-oss",
)
WrongWindow.add_fault(
    "window-one-more",
    "a window reaches one token further back",
    numbers=lambda self, hparams: replace(hparams, n_swa=hparams.n_swa + 1),
)


class WindowSmaller(WrongWindow, name="mutant:window-one-less"):
    mistake = "a window ends one token too early"

    def numbers(self, hparams: Any) -> Any:
        return replace(hparams, n_swa=hparams.n_swa - 1)


WindowSmaller.add_fault(
    "window-one-less-gpt-oss",
    "the window of gpt-oss ends one token too early",
    shows_on="arch:gpt-oss",
)
WrongWindow.add_fault(
    "window-everywhere",
    "every layer has a window",
    layer=1,
    numbers=lambda self, hparams: replace(hparams, windows=0),
)
WrongWindow.add_fault(
    "windows-exchanged",
    "odd layers have a window instead of even layers",
    numbers=lambda self, hparams: replace(
        hparams, windows=tuple(il % 2 == 1 for il in range(hparams.n_layer))
    ),
)


class OddWindows(GptOssHparams):
    def window(self, layer: int) -> int:
        return self.n_swa if layer % 2 else 0


WrongWindow.add_fault(
    "windows-exchanged-gpt-oss",
    "odd layers of gpt-oss have a window instead of even layers",
    shows_on="arch:gpt-oss",
    numbers=lambda self, hparams: OddWindows(**asdict(hparams)),
)
WrongWindow.add_fault(
    "windows-of-gemma3-from-the-first",
    "the first of six layers sees everything, instead of the last",
    shows_on="arch:gemma3",
    graph_window=lambda self, right, layer: right((layer - 1) % 6),
)


class KindsOfGemma3(WrongWindow, name="mutant:kinds-of-gemma3-from-the-first"):
    mistake = "the first of six layers has the global mask and rope, instead of the last"
    shows_on = "arch:gemma3"
    site = "Qcur_rope"

    def numbers(self, hparams: Any) -> Any:
        every = range(hparams.n_layer)
        return replace(hparams, windows=tuple(hparams.has_window((il - 1) % 6) for il in every))


class WindowOfPrompt(WrongWindow, name="mutant:window-in-decode-only"):
    mistake = "the window limits only single tokens; tokens of a prompt see all earlier ones"

    def soft_max(self, right: Op, x: F32, scale: float, visible: Bools | None) -> F32:
        prompt = visible is not None and len(visible) > 1
        return right(x, scale, np.tri(*x.shape[-2:], dtype=np.bool_) if prompt else visible)
