"""Tests of windows: the last token inside, the first token outside, and layers without a window."""

from lockstep.harness.acid.measurements.base import AcidPlace, Names, Wrong
from lockstep.harness.acid.measurements.feed_forward import HALF_BF16
from lockstep.harness.acid.measurements.prompt import CausalMask, Far256, Prompted
from lockstep.harness.acid.tokens import role
from lockstep.harness.acid.weights import NOT_ITS_OWN, SCORE, SMALL, AcidWeights

GLOBAL = 5  # the first layer without a window
NEARER = "of a window"  # a coordinate for what a letter of the prompt found


class WindowInside(Prompted):
    """The inside of the window. The letter n is the last token inside, and nothing else has a
    value."""

    name = "window-inside"
    sees = "a layer with a window of n tokens sees the token n - 1 positions back"
    where = "layer 0, head 0, attention.sliding_window"
    right = (1.0,)
    wrong: Wrong = (
        ("the window ends earlier", (0.0,)),
        ("too large", (2.0,)),
    )
    catches: Names = ("window-one-less", "cache-ring-of-32")
    rests_on: Names = ("prompt-end", "rope-base-of-windows")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        self.look_for_n(w, at)
        w.read(0, {role("n"): 1.0}, at.value())

    def look_for_n(self, w: AcidWeights, at: AcidPlace) -> None:
        w.key(0, NOT_ITS_OWN, {role("n"): 1.0, role("s"): 0.5})
        w.query(0, 0, NOT_ITS_OWN, at.state, 2 * SCORE)


class WindowBeyond(WindowInside):
    """The outside of the window. The letter n is one position outside. If it were visible, it would
    be found before s."""

    name = "window-beyond"
    sees = "a layer with a window of n tokens does not see the token n positions back"
    right = (-1.0,)
    wrong = (
        ("the window reaches further, or there is none", (1.0,)),
        ("nothing is found", (0.0,)),
        ("too low", (-2.0,)),
    )
    catches = (
        "window-ignored",
        "window-one-more",
        "windows-exchanged",
        "windows-of-gemma3-from-the-first",
    )
    rests_on = ("prompt-end", "causal-mask", "head-norm-weights")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        self.look_for_n(w, at)
        w.read(0, {role("n"): 1.0, role("s"): -1.0}, at.value())


class PromptInWindow(Prompted):
    """The window in a prompt. In layer 0 the letter s looks for m, which is far outside the window,
    with a higher score than for itself."""

    name = "window-in-prompt"
    sees = "a token of the prompt also sees no more than its window"
    where = f"layer 0, head 0; layer {GLOBAL}, head 0"
    right = (-1.0,)
    wrong = (
        ("the prompt is not cut to the window", (1.0,)),
        ("nothing is found", (0.0,)),
        ("too low", (-2.0,)),
    )
    catches = ("window-ignored", "window-in-decode-only", "windows-of-gemma3-from-the-first")
    rests_on = (
        *("prompt-end", "far-in-global-layer", "causal-mask", "attention-scale"),
        *("head-norm-weights", "embedding-scale", "rope-pairing"),
    )
    radius = 14 * HALF_BF16
    reason = "a weight of attention within exp(-50) of one, twice, and fourteen roundings to BF16"

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        letters = {role("m"): 1.0, role("s"): 0.5}
        element = w.free_key(0)
        w.key(0, element, letters)
        w.query(0, 0, element, role("s"), 2 * SCORE)
        w.read(0, {role("m"): 1.0, role("s"): -1.0}, NEARER)
        w.look(GLOBAL, at.state, {role("s"): 1.0})
        w.read(GLOBAL, {NEARER: 1 / SMALL}, at.value())


class FarInGlobal(Far256):
    name = "far-in-global-layer"
    sees = "every sixth layer has no window, and sees the first letter of a long prompt"
    layer = GLOBAL
    where = f"layer {GLOBAL}, head 0"
    catches = (
        "cache-ring-of-32",
        "cache-keeps-last",
        "window-everywhere",
        "windows-exchanged",
        "windows-of-gemma3-from-the-first",
    )


class GlobalMask(CausalMask):
    """The causal mask of layers without a window. Such a layer finds the letters m and n; see
    causal-mask of llama."""

    layer = GLOBAL
    where = f"layer 0, head 0; layer {GLOBAL}, heads 0 and 1"
    rests_on = (
        *("far-in-global-layer", "newest-token", "softmax-sum", "rope-pairing"),
        "embedding-scale",
    )
