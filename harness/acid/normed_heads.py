"""Weights of heads with normed queries and keys. Every vector has the same length before the
norm."""

import numpy as np

from lockstep.harness.acid.shape import F64, Shape, eight_bits
from lockstep.harness.acid.vocabulary import FULL, SHORT
from lockstep.harness.acid.weights import CONST, TINY, AcidWeights

# Elements that nothing else uses, in pairs of their own: the larger part of the missing length, and
# the remainder, for which eight bits do not suffice. In an engine with other pairs, those of
# queries rotate with elements that no key uses.
KEY_FILL, QUERY_FILL = (10, 11), (6, 7)
QUERY_WEIGHT = 416.0  # factor by which queries are longer than keys


class NormedHeads(AcidWeights):
    """Weights of heads with norms. A norm does not change a vector of its own length, so scores are
    the same as without norms. A test may stretch a vector, and only a norm undoes that."""

    def __init__(self, shape: Shape, n_vocab: int) -> None:
        super().__init__(shape, n_vocab)
        self.q_norm: F64 = np.full((shape.n_layer, shape.n_embd_head), QUERY_WEIGHT)
        self.k_norm: F64 = np.ones((shape.n_layer, shape.n_embd_head))
        # keys: q or k, layer, head, state
        self.stretched: dict[tuple[str, int, int, str], float] = {}

    def finish(self) -> None:
        self.q, self.k = eight_bits(self.q), eight_bits(self.k)
        length = float(np.sqrt(self.shape.n_embd_head))
        for layer in range(self.shape.n_layer):
            for state in [name for name in self.at if name.startswith(("state:", "letter:"))]:
                for head in range(self.shape.n_head):
                    place = ("q", layer, head, state)
                    fill(self, self.q[layer, head], QUERY_FILL, length * QUERY_WEIGHT, place)
                for head in range(self.shape.n_head_kv):
                    fill(self, self.k[layer, head], KEY_FILL, length, ("k", layer, head, state))


def fill(
    w: NormedHeads,
    matrix: F64,
    elements: tuple[int, int],
    length: float,
    place: tuple[str, int, int, str],
) -> None:
    """Fill a head's matrix so that tokens of this state get this length. matrix: (n_embd_head,
    n_embd)."""
    _, layer, _, state = place
    here, base = w.coordinate(state), w.coordinate(TINY if state in (FULL, SHORT) else CONST)
    by = w.shape.unit * w.attn_norm[layer]
    stretch = w.stretched.get(place, 1.0)
    given = matrix[:, here] * by[here] + matrix[:, base] * by[base]
    if stretch != 1:
        matrix[:, here] = eight_bits((stretch * given - matrix[:, base] * by[base]) / by[here])
        given = matrix[:, here] * by[here] + matrix[:, base] * by[base]
    missing = (stretch * length) ** 2 - float(given @ given)
    if missing < 0:
        raise ValueError(
            f"{place}: {np.sqrt(float(given @ given)):.1f} is longer than {length:.1f}"
        )
    for element, less in zip(elements, (2.0**-7, 0.0), strict=True):
        root = float(np.sqrt(missing)) / by[here]
        matrix[element, here] = part = eight_bits(root * (1 - less))
        missing -= float(part * by[here]) ** 2
