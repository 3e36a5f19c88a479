"""Tests of a mixture of experts: the choice of experts, their weights, and their matrices."""

from lockstep.harness.acid.experts import AcidExperts
from lockstep.harness.acid.measurements.base import AcidPlace, Measurement
from lockstep.harness.acid.measurements.feed_forward import HALF_BF16
from lockstep.harness.acid.measurements.prompt import Prompted
from lockstep.harness.acid.tokens import role
from lockstep.harness.acid.weights import FAR, SCORE, SMALL, AcidWeights

# logits of the experts, the likeliest first: shares 0.579 0.213 0.129 0.078
LOGITS = (2.0, 1.0, 0.5, 0.0)
FIRST, SECOND = 0.7311, 0.2689  # weights of the first two experts, normalised to a sum of one
REASON = "a logit of the router within 2^-7 of its value, and seven roundings to BF16"


class Choice(Measurement):
    """The choice of experts: 2 is the likeliest, then 0, 1 and 3. Each expert writes its weight to
    its own value."""

    name = "experts-choice"
    sees = "the two likeliest of four experts are used, and their softmax weights sum to one"
    where = "layer 0, ffn_gate_inp, ffn_*_exps"
    right = (SECOND, 0.0, FIRST, 0.0)
    wrong = (
        ("the least likely", (0.0, 0.62, 0.0, 0.38)),
        ("the next expert's matrices", (0.0, SECOND, 0.0, FIRST)),
        ("weights in the order of ids", (FIRST, 0.0, SECOND, 0.0)),
        ("weights do not sum to one", (0.213, 0.0, 0.579, 0.0)),
        ("not weighted", (1.0, 0.0, 1.0, 0.0)),
        ("divided by the largest", (0.3679, 0.0, 1.0, 0.0)),
        ("a sigmoid", (0.4535, 0.0, 0.5465, 0.0)),
        ("averaged", (SECOND / 2, 0.0, FIRST / 2, 0.0)),
        ("one alone", (0.0, 0.0, 1.0, 0.0)),
        ("the second is not added", (0.0, 0.0, FIRST, 0.0)),
        ("all four", (0.213, 0.129, 0.579, 0.078)),
        ("whatever the router says", (0.5, 0.5, 0.0, 0.0)),
        ("weights are multiplied into what experts read", (0.0649, 0.0, 0.5329, 0.0)),
        ("", (0.0, 0.0, 0.0, 0.0)),
    )
    radius = 9 * HALF_BF16 * FIRST
    reason = REASON
    catches = (
        "experts-least-liked",
        "experts-ids-from-one",
        "experts-weights-by-id",
        "experts-not-normalised-llama",
        "experts-not-weighted",
        "experts-divided-by-the-largest",
        "experts-averaged",
        "experts-one-fewer",
        "experts-last-not-added",
        "experts-softmax-over-tokens",
        "experts-inputs-weighted",
    )
    rests_on = ("gate-and-up", "experts-matrices", "attention-scale")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        assert isinstance(w, AcidExperts), "an architecture with experts"
        unit = w.free_unit(0)
        w.choose(0, at.state, dict(zip((2, 0, 1, 3), LOGITS, strict=True)))
        for expert in range(w.shape.n_expert):  # silu(8) is 8, except for a 3000th
            w.own((0, expert, unit), at.state, 8.0, 1.0, {at.value(expert): 1 / 8})


class Matrices(Measurement):
    """The matrices of experts. Expert 1 has a weight of 0.731 and a gate of 8 with an up of 1, and
    writes the first value. Expert 3 has a weight of 0.269 and a gate of 4 with an up of 2, and
    writes the second value."""

    name = "experts-matrices"
    sees = "ffn_gate_exps, ffn_up_exps and ffn_down_exps of one expert go together"
    where = "layer 0, ffn_*_exps"
    right = (FIRST, 0.2641)
    wrong = (
        ("gate and up exchanged", (0.5344, 0.2369)),
        ("the way back of the first for all", (0.995, 0.0)),
        ("no weights", (1.0, 0.982)),
        ("too small", (FIRST / 2, 0.132)),
        ("the second expert is missing", (FIRST, 0.0)),
        ("", (0.0, 0.0)),
    )
    radius = 9 * HALF_BF16 * FIRST
    reason = REASON
    catches = ("experts-down-of-the-first", "experts-gate-and-up-exchanged")
    rests_on = ("experts-choice", "gate-and-up", "attention-scale")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        assert isinstance(w, AcidExperts), "an architecture with experts"
        unit = w.free_unit(0)
        w.choose(0, at.state, dict(zip((1, 3, 0, 2), LOGITS, strict=True)))
        w.own((0, 1, unit), at.state, 8.0, 1.0, {at.value(0): 1 / 8})
        w.own((0, 3, unit), at.state, 4.0, 2.0, {at.value(1): 1 / 8})


class EachTokensExperts(Prompted):
    """The experts of each token: only the letter k, which occurs two hundred times, chooses expert
    3."""

    name = "experts-of-each-token"
    sees = "every token of a prompt goes to its own experts"
    where = "layer 0, ffn_gate_inp, ffn_*_exps; layer 1, head 0"
    right = (0.982,)  # the weight of an expert whose logit is larger by 4
    wrong = (
        ("another token's experts, or not all tokens", (0.0,)),
        ("half of it", (0.5,)),
        ("too large", (1.5,)),
    )
    reason = REASON
    catches = ("experts-of-the-first-token", "experts-of-limited-capacity")
    rests_on = ("far-256", "experts-choice", "earlier-token", "rope-pairing")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        assert isinstance(w, AcidExperts), "an architecture with experts"
        unit, letter, made = w.free_unit(0), role("k"), "of an expert"
        w.choose(0, letter, {3: 4.0})
        w.own((0, 3, unit), letter, 8.0, 1.0, {made: 1 / 8})
        w.key(1, FAR, {letter: -1.0})  # m has the value 1 there
        w.query(1, 0, FAR, at.state, -1.5 * SCORE)
        w.read(1, {made: 1 / SMALL}, at.value())
