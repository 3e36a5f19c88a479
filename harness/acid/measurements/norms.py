"""Tests of norms: the divisor, and the weights."""

from lockstep.harness.acid.measurements.base import AcidPlace, Measurement, Names
from lockstep.harness.acid.measurements.feed_forward import HALF_BF16, REASON
from lockstep.harness.acid.weights import NOTHING, TINY, AcidWeights

SURE = 120.0  # a score of which a third suffices


class NormEps(Measurement):
    """The eps of a norm. The first token of a report is so short that eps is half of the sum in the
    norm's root. A later token of usual length reads the normalised value through attention: 8 /
    sqrt(2), divided by 8."""

    name = "norm-eps"
    sees = "the norm adds attention.layer_norm_rms_epsilon of the file to the mean square"
    where = "layer 0, attn_norm, read by head 0"
    right = (0.7071,)
    wrong = (
        ("eps too small, or left out", (0.95,)),
        ("eps too large", (0.4642,)),
    )
    radius = 7 * HALF_BF16
    reason = REASON
    catches = ("wrong-eps", "eps-missing", "eps-outside-root")
    rests_on = ("earlier-token", "norm-mean", "rope-base")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        w.look(0, at.state, {TINY: 1.0}, score=SURE)
        w.read(0, {TINY: 1.0}, at.value())


class NormCentred(Measurement):
    """The RMS norm of a row in which two of 128 coordinates are 1, so that the mean is 1/64.

    A norm that subtracts the mean shows in coordinates that nothing writes.
    """

    name = "norm-mean"
    sees = "the norm does not subtract the mean (RMS norm, not LayerNorm)"
    where = "layer 0, ffn_norm"
    right = (0.0,)
    wrong = (
        ("the mean is subtracted", (-1.0,)),
        ("something is added", (1.0,)),
    )
    radius = 2.0**-9
    reason = "a coordinate that nothing writes is zero in every engine that converts nothing"
    catches = ("rms-norm-centred",)
    rests_on = ("gate-and-up",)

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        # silu(8) = 8, times 64 / 8 of the mean's share
        w.unit(0, {at.state: 8.0}, {NOTHING: 64.0}, {at.value(): 1 / 8})


class FfnNormWeight(Measurement):
    """A state with the weight 4 in ffn_norm, 1/2 in attn_norm, and 2 in ffn_norm of layer 1."""

    name = "ffn-norm-weight"
    sees = "the normalised value is multiplied by ffn_norm of this layer, after the division"
    where = "layer 0, ffn_norm"
    right = (1.0,)
    wrong = (
        ("no weight", (0.25,)),
        ("attn_norm taken", (0.125,)),
        ("ffn_norm of another layer", (0.5,)),
        ("too large", (1.6,)),
    )
    radius = 7 * HALF_BF16
    reason = REASON
    catches = ("norm-without-weight", "weight-before-norm", "norms-exchanged")
    rests_on: Names = ("gate-and-up", "output-norm-weight")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        here = w.coordinate(at.state)
        w.ffn_norm[0, here], w.ffn_norm[1, here], w.attn_norm[0, here] = 4.0, 2.0, 0.5
        # the gate reads the constant with weight 1, and the measured branch reads the state
        w.unit(0, {at.state: 8.0}, {at.state: 1.0}, {at.value(): 1 / 128})


class AttnNormWeight(Measurement):
    """The weight of attn_norm. It is 2 for this state, and the token reads its own value."""

    name = "attn-norm-weight"
    sees = "attention reads values that are multiplied by attn_norm of this layer"
    where = "layer 1, attn_norm, read by head 0"
    right = (1.0,)
    wrong = (
        ("no weight", (0.5,)),
        ("too large", (1.5,)),
        ("no value", (0.0,)),
    )
    radius = 7 * HALF_BF16
    reason = REASON
    catches = (
        "norm-without-weight",
        "weight-before-norm",
        "norms-exchanged",
        "race-cache-written-late",
        "cache-values-transposed",
        "attention-last-cells-dropped",
    )
    rests_on = ("newest-token", "earlier-token", "values-not-turned")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        w.attn_norm[1, w.coordinate(at.state)] = 2.0
        w.look(1, at.state, {at.state: 0.5}, score=SURE)
        w.read(1, {at.state: 0.5}, at.value())


class OutputNormWeight(Measurement):
    """The weight of output_norm. It is 1/4 for the measured coordinate."""

    name = "output-norm-weight"
    sees = "the last norm is there, and is multiplied by output_norm"
    where = "output_norm"
    right = (0.5,)
    wrong = (
        ("no weight, or no norm", (2.0,)),
        ("weight twice", (0.125,)),
        ("too large", (0.9,)),
    )
    radius = 7 * HALF_BF16
    reason = REASON
    catches = (
        "norm-without-weight",
        "last-norm-missing",
        "last-norm-of-a-layer",
        "last-norm-of-prompts-only",
    )
    rests_on = ("silu",)

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        w.output_norm[w.coordinate(at.value())] = 0.25
        w.unit(0, {at.state: 8.0}, {at.state: 1.0}, {at.value(): 1 / 4})
