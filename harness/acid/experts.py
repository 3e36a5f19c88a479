"""Weights of feed-forward networks whose experts are alike, except where a test makes one
different."""

from collections.abc import Mapping

import numpy as np

from lockstep.harness.acid.shape import F64, Shape
from lockstep.harness.acid.weights import SMALL, AcidWeights


class AcidExperts(AcidWeights):
    """Weights with experts that are equally likely unless a test chooses. Then any choice gives the
    same result."""

    def __init__(self, shape: Shape, n_vocab: int) -> None:
        super().__init__(shape, n_vocab)
        s, n = shape, shape.n_expert
        self.router: F64 = np.zeros((s.n_layer, n, s.n_embd))
        self.gates: F64 = np.zeros((s.n_layer, n, s.n_ff, s.n_embd))
        self.ups: F64 = np.zeros((s.n_layer, n, s.n_ff, s.n_embd))
        self.downs: F64 = np.zeros((s.n_layer, n, s.n_embd, s.n_ff))

    def finish(self) -> None:
        self.gates += self.gate[:, None]
        self.ups += self.up[:, None]
        self.downs += self.down[:, None]

    def choose(self, layer: int, state: str, logits: Mapping[int, float]) -> None:
        """Set the router so that the experts get these logits in this state."""
        for expert, value in logits.items():
            self.router[layer, expert, self.coordinate(state)] = value / self.shape.unit

    def own(
        self,
        place: tuple[int, int, int],
        state: str,
        gate: float,
        up: float,
        out: Mapping[str, float],
    ) -> None:
        """Write a unit of one expert only: its gate, up and outputs. place: layer, expert and
        unit."""
        layer, expert, at = place
        here = self.coordinate(state)
        self.gates[layer, expert, at, here] = gate / self.shape.unit
        self.ups[layer, expert, at, here] = up / self.shape.unit
        for name, value in out.items():
            self.downs[layer, expert, self.coordinate(name), at] = value * SMALL
