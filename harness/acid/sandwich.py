"""Weights of a model with norms after each half-layer, scaled embeddings, and a tied output matrix.

Each half-layer also writes a ballast, so that the divisor of the norm after it is nearly constant.
A row of the embedding table must show the state of its token, and the state that it answers. The
answered state has separate coordinates, which a layer writes. There the row is short, so that it
hardly counts as an embedding, and the last norm's weights are large.
"""

import numpy as np

from lockstep.harness.acid.normed_heads import NormedHeads
from lockstep.harness.acid.shape import F64, Shape
from lockstep.harness.acid.vocabulary import ASKED, FULL, SHORT, START
from lockstep.harness.acid.weights import CONST, EDGE, SMALL, TINY

BALLAST, REST = "ballast", "answer: rest"
HEAVY = 32.0  # size of the ballast relative to a measured 1
HOLDER, ELEMENT = 1, 1  # the head, and the element of values, that write the ballast
SHORT_ROW = 2.0**-9  # largest size of a row in the coordinates of answers
# Factors for the rows of states. Short tokens answer the first two, and their rows must not become
# longer. Other states are answered with eight times the size, and must not answer themselves.
LESS = {START: 2.0**-7, ASKED: 2.0**-7, FULL: 2.0**-4, SHORT: 2.0**-4}
ANSWERS = (2, 3, 4)  # layers that write the state to be answered
LOCAL_BASE = 10000.0  # rope base of layers with a window


class Sandwich(NormedHeads):
    def __init__(self, shape: Shape, n_vocab: int) -> None:
        super().__init__(shape, n_vocab)
        s = shape
        # so that a measured 1 becomes SMALL relative to a 1 of the embedding
        self.post_attention_norm: F64 = np.full((s.n_layer, s.n_embd), HEAVY * SMALL)
        self.post_ffw_norm: F64 = np.full((s.n_layer, s.n_embd), HEAVY * SMALL)
        self.hold()

    def hold(self) -> None:
        """Write the ballast of all half-layers. Short tokens need it too."""
        root = float(np.sqrt(2))
        every = {CONST: 1.0, TINY: root}
        here = self.coordinate(BALLAST)
        self.post_attention_norm[:, here] = self.post_ffw_norm[:, here] = 0
        for layer in range(self.shape.n_layer):
            self.value(layer, ELEMENT, every)
            self.o[layer, here, HOLDER, ELEMENT] = SMALL * HEAVY
            eight = {name: 8 * size for name, size in every.items()}
            self.unit(layer, eight, every, {BALLAST: HEAVY / 8})

    def has_window(self, layer: int) -> bool:
        return layer % 6 < 5

    def frequency(self, layer: int, pair: int) -> float:
        base = LOCAL_BASE if self.has_window(layer) else self.shape.rope_base
        return float(base ** (-2 * pair / self.shape.n_embd_head))

    def embed(self, token: int, state: str, size: float = 1.0, base: str = CONST) -> None:
        """Write the embedding. For a short token, it is divided by the scale of embeddings, so that
        the token stays short."""
        by = float(np.sqrt(self.shape.n_embd)) if base == TINY else 1.0
        super().embed(token, state, size / by, base)

    def finish(self) -> None:
        super().finish()
        self.write_states()
        self.tie()

    def write_states(self) -> None:
        """Write the state to answer to the coordinate that the table's rows use for it."""
        answered = [name for name in self.at if np.any(self.head[:, self.at[name]])]
        letters = [name for name in answered if name.startswith("letter:")]
        states = [name for name in answered if name.startswith("state:") and name != START]
        for i, state in enumerate(states):
            size = 2.0 if state in (FULL, SHORT) else 1.0  # short tokens contribute half as much
            out = {answer_of(state): size / 8}
            self.unit(ANSWERS[i % len(ANSWERS)], {state: 8.0}, {state: 1.0}, out)
        starts = [START, *letters]  # any token at the end of a prompt gets the same answer
        eight, one = dict.fromkeys(starts, 8.0), dict.fromkeys(starts, 1.0)
        self.unit(ANSWERS[-1], eight, one, {answer_of(START): 1 / 8})
        self.unit(ANSWERS[-1], {CONST: 8.0}, {CONST: 1.0}, {REST: 1 / 8})

    def tie(self) -> None:
        """Move the weights of the head into the embedding table and the last norm."""
        weights = self.output_norm.copy()
        self.output_norm[:] = 0
        for name, at in list(self.at.items()):
            column = self.head[:, at]
            if name == EDGE or name.startswith("letter:") or not np.any(column):
                continue
            measured = name.startswith("value:")
            to = at if measured else self.coordinate(REST if name == CONST else answer_of(name))
            wide = column if measured else column / SMALL
            row = SHORT_ROW * LESS.get(name, 1.0)
            times = 2.0 ** np.ceil(np.log2(np.abs(wide).max() / row))
            self.embd[:, to] += wide / times
            self.output_norm[to] = times * weights[at]


def answer_of(state: str) -> str:
    return f"answer: {state}"
