"""Weights of a model whose norms subtract the mean. A negative value balances every written value.

The model has no gates and no rotary positions. A position is a coordinate of the token.
"""

from collections.abc import Mapping

import numpy as np

from lockstep.harness.acid.shape import F64, Shape
from lockstep.harness.acid.weights import CONST, NOTHING, TINY, AcidWeights

# coordinates that balance the constant and the state, the first position, and the values of tests
BALANCES = ("balance 0", "balance 1")
OF_MARK, OF_VALUES = "balance of the mark", "balance of values"
COS, SIN = "position cosine", "position sine"
LEVEL = 4.0
POSITION = 0.5  # size of the position coordinates
FIRST = "first position"  # a coordinate in which only row 0 of the table is nonzero
# some tests share these coordinates, because each token belongs to only one test
SHARED = "value {}"


class Centred(AcidWeights):
    """A model whose norms subtract the mean. `sharing`: tests, or single values of tests, that may
    share coordinates. Values may share a coordinate only if none of them is written while another
    one is measured."""

    def __init__(self, shape: Shape, n_vocab: int) -> None:
        super().__init__(shape, n_vocab)
        s = shape
        self.sharing: set[str] = set()
        self.positions: F64 = np.zeros((s.n_ctx, s.n_embd))
        self.q_bias: F64 = np.zeros((s.n_layer, s.n_head, s.n_embd_head))
        self.v_bias: F64 = np.zeros((s.n_layer, s.n_head, s.n_embd_head))
        self.o_bias: F64 = np.zeros((s.n_layer, s.n_embd))
        self.up_bias: F64 = np.zeros((s.n_layer, s.n_ff))
        self.down_bias: F64 = np.zeros((s.n_layer, s.n_embd))
        self.attn_norm_bias: F64 = np.zeros((s.n_layer, s.n_embd))
        self.ffn_norm_bias: F64 = np.zeros((s.n_layer, s.n_embd))
        self.output_norm_bias: F64 = np.zeros(s.n_embd)
        # states whose tokens do not have mean zero, and their means
        self.uncentred: dict[str, float] = {}
        self.write_positions()

    def coordinate(self, name: str) -> int:
        name = NOTHING if name == TINY else name  # there are no short tokens here
        kind, _, rest = name.partition(":")
        test, _, number = rest.rpartition(":")
        shared = kind == "value" and bool({test, rest} & self.sharing)
        return super().coordinate(SHARED.format(number) if shared else name)

    def write_positions(self) -> None:
        at = np.arange(self.shape.n_ctx)
        for name, values in ((COS, np.cos(at)), (SIN, np.sin(at))):
            self.positions[:, self.coordinate(name)] = POSITION * values
            self.positions[:, self.coordinate(f"{name}, less")] = -POSITION * values
        self.positions[0, self.coordinate(FIRST)] = 1
        self.positions[0, self.coordinate(OF_MARK)] = -1

    def embed(self, token: int, state: str, size: float = 1.0, base: str = CONST) -> None:
        """Write the embedding. A short token would be dominated by its position, so it gets the
        usual length."""
        super().embed(token, state, 1.0 if base != CONST else size, CONST)

    def unit(
        self,
        layer: int,
        gate: Mapping[str, float],
        up: Mapping[str, float],
        out: Mapping[str, float],
        *,
        last: bool = False,
    ) -> None:
        """Write a unit that adds act(gate) to coordinates with these factors. up: must be 1 in
        every element, because there are no gates."""
        assert set(up.values()) <= {1.0}, "there are no gated units"
        super().unit(layer, gate, {}, out, last=last)

    def turn(
        self,
        place: tuple[int, int, int],
        state: str,
        keys: Mapping[str, float],
        distance: float,
        score: float,
    ) -> None:
        """Give the keys a score that does not depend on their distance, because nothing rotates."""
        layer, head, _ = place
        element = self.free_key(layer)
        self.key(layer, element, keys)
        self.query(layer, head, element, state, score)

    def finish(self) -> None:
        """Balance all written values, so that the mean of the residual stream is zero. Queries are
        made a little larger than keys, so that an engine that exchanges both still writes a
        report."""
        self.q, self.k, self.q_bias = self.q / LEVEL, self.k * LEVEL, self.q_bias / LEVEL
        low, high = (self.coordinate(name) for name in BALANCES)
        for at in (low, high):
            self.embd[:, at] -= self.embd.sum(axis=1) if at == high else self.embd.sum(axis=1) / 2
        for state, size in self.uncentred.items():
            self.embd[self.embd[:, self.coordinate(state)] > 0, self.coordinate(OF_MARK)] = size
        less = self.coordinate(OF_VALUES)
        for written in (self.o, self.down, self.o_bias, self.down_bias):
            written[:, less] -= written.sum(axis=1)
