"""The matrices of an acid model under construction, by the meaning of their elements.

A weight is given by its effect on a normalised 1 (`shape.unit`). A measured value is given as a
share of SMALL times the constant coordinate, which is 1 in every token except the tiny ones.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count

import numpy as np

from lockstep.harness.acid.shape import F64, Shape

CONST, NOTHING = "constant", "nothing"  # NOTHING: a coordinate that no token and no weight writes
# the last coordinate, in which only tokens of this state are nonzero
EDGE, EDGE_STATE = "edge", "state:matrix-edges"
TINY = "tiny"  # takes the place of the constant in the short tokens at the beginning of a report
# Elements of a head that rotate so slowly that the length of a report does not matter, whichever
# elements an engine pairs. A query finds a key in one of them.
SLOW_KEYS = (22, 20, 23, 21, 19, 26, 24, 27, 25, 18)
# elements without another key in the same rotary pair; keys: True if elements half a head apart are
# paired
ALONE_KEYS = {False: (26, 24), True: (27, 25)}
# tests that look across the whole prompt have an element of the slowest pairs for themselves
FAR_TOO, NOT_ITS_OWN, FAR = 28, 29, 31
SINK = 30  # element in which a query without a task finds the token that has no value
SLOW_VALUES = tuple(range(31, 4, -1))
ALWAYS = "always"  # a state of heads that always attend to something
Part = tuple[int, int]  # layer, element
# Factor on measured values, so that the result of a test hardly changes the length of its token,
# which other tests read.
SMALL = 1 / 8
SCORE = 60.0  # score of the wanted token relative to all others, whose share is exp(-60)


class AcidWeights:
    """The weights of an acid model. `at`: the coordinate of each name, the constant first."""

    def __init__(self, shape: Shape, n_vocab: int) -> None:
        s = self.shape = shape
        self.at: dict[str, int] = {}
        self.coordinate(CONST)
        self.coordinate(NOTHING)
        self.embd: F64 = np.zeros((n_vocab, s.n_embd))
        self.head: F64 = np.zeros((n_vocab, s.n_embd))
        self.q: F64 = np.zeros((s.n_layer, s.n_head, s.n_embd_head, s.n_embd))
        self.k: F64 = np.zeros((s.n_layer, s.n_head_kv, s.n_embd_head, s.n_embd))
        self.v: F64 = np.zeros((s.n_layer, s.n_head_kv, s.n_embd_head, s.n_embd))
        self.o: F64 = np.zeros((s.n_layer, s.n_embd, s.n_head, s.n_embd_head))
        self.gate: F64 = np.zeros((s.n_layer, s.n_ff, s.n_embd))
        self.up: F64 = np.zeros((s.n_layer, s.n_ff, s.n_embd))
        self.down: F64 = np.zeros((s.n_layer, s.n_embd, s.n_ff))
        self.attn_norm: F64 = np.ones((s.n_layer, s.n_embd))
        self.ffn_norm: F64 = np.ones((s.n_layer, s.n_embd))
        self.output_norm: F64 = np.ones(s.n_embd)
        self.units = [count() for _ in range(s.n_layer)]
        self.keys: set[Part] = set()
        self.values: set[Part] = set()
        self.shared: dict[tuple[int, str], int] = {}  # elements of keys that several tests use
        self.coded: dict[int, bytes] = {}  # rows of the last layer's ffn_down, if it has blocks
        self.busy: set[tuple[int, int, str]] = set()  # layer, head, state

    def coordinate(self, name: str) -> int:
        """Return the coordinate of a name in the residual stream. A new name gets the next free
        coordinate. EDGE has the last one."""
        if name == EDGE:
            return self.shape.n_embd - 1
        if name not in self.at and len(self.at) == self.shape.n_embd - 1:
            raise ValueError(f"no coordinate is left for {name!r}: n_embd is {self.shape.n_embd}")
        return self.at.setdefault(name, len(self.at))

    def embed(self, token: int, state: str, size: float = 1.0, base: str = CONST) -> None:
        """Write the token's embedding: a state, and the constant or its replacement, both with this
        size."""
        self.embd[token] = 0
        self.embd[token, self.coordinate(base)] = size
        self.embd[token, self.coordinate(state)] = size

    # --- attention --------------------------------------------------------------------------

    def query(self, layer: int, head: int, element: int, state: str, score: float) -> None:
        """Add to the score that a query of this state gives to keys with 1 in the element."""
        root = np.sqrt(self.shape.n_embd_head)
        self.q[layer, head, element, self.coordinate(state)] += score * root / self.shape.unit
        self.busy.add((layer, head, state))

    def key(self, layer: int, element: int, parts: Mapping[str, float]) -> None:
        """Write the key in every KV head, so that only the tests of groups depend on the head."""
        for kv in range(self.shape.n_head_kv):
            self.key_of(layer, kv, element, parts)

    def key_of(self, layer: int, kv: int, element: int, parts: Mapping[str, float]) -> None:
        self.keys.add((layer, element))
        for name, value in parts.items():
            self.k[layer, kv, element, self.coordinate(name)] = value / self.shape.unit

    def look(
        self,
        layer: int,
        state: str,
        parts: Mapping[str, float],
        score: float = SCORE,
        *,
        alone: bool = False,
    ) -> None:
        """Make head 0 find the tokens with these coordinates in this state.

        alone: no other key may use the same rotary pair, because the query would see a small part
        of that key.
        """
        if alone:
            element = free(ALONE_KEYS[self.shape.halves], self.keys, [layer])
            self.keys.add((layer, element ^ 1))
        else:
            element = self.free_key(layer)
        self.key(layer, element, parts)
        self.query(layer, 0, element, state, score)

    def value(self, layer: int, element: int, parts: Mapping[str, float]) -> None:
        for kv in range(self.shape.n_head_kv):
            self.value_of(layer, kv, element, parts)

    def value_of(self, layer: int, kv: int, element: int, parts: Mapping[str, float]) -> None:
        self.values.add((layer, element))
        for name, value in parts.items():
            self.v[layer, kv, element, self.coordinate(name)] = value / self.shape.unit

    def read(self, layer: int, parts: Mapping[str, float], measured: str) -> None:
        """Make head 0 read these values, and write them to the coordinate `measured`."""
        element = self.free_value(layer)
        self.value(layer, element, parts)
        self.out(layer, 0, element, measured)

    def free_key(self, *layers: int) -> int:
        """Return an element that is free in all these layers. An engine that reads the wrong layer
        then finds another test's key instead of nothing."""
        return free(SLOW_KEYS, self.keys, layers)

    def shared_key(self, layer: int, name: str) -> int:
        """Return the element that several tests share, because their keys have opposite signs."""
        if (layer, name) not in self.shared:
            self.shared[layer, name] = self.free_key(layer)
            self.keys.add((layer, self.shared[layer, name]))
        return self.shared[layer, name]

    def turn(
        self,
        place: tuple[int, int, int],
        state: str,
        keys: Mapping[str, float],
        distance: float,
        score: float,
    ) -> None:
        """Add score * cos(f * (d - distance)) to the scores of these keys, which are d positions
        back; f is the pair's frequency. place: layer, head and pair."""
        layer, head, pair = place
        angle = self.frequency(layer, pair) * distance
        first, second = self.shape.pair(pair)
        self.key(layer, first, keys)
        self.query(layer, head, first, state, score * float(np.cos(angle)))
        self.query(layer, head, second, state, -score * float(np.sin(angle)))

    def frequency(self, layer: int, pair: int) -> float:
        """Return the angle in radians by which a rotary pair turns per position."""
        return self.shape.frequency(pair)

    def free_value(self, *layers: int) -> int:
        return free(SLOW_VALUES, self.values, layers)

    def out(self, layer: int, head: int, element: int, measured: str, factor: float = 1.0) -> None:
        """Add the element that the head reads to the coordinate `measured`, times a factor."""
        self.o[layer, self.coordinate(measured), head, element] += factor * SMALL

    def sink(self, states: Iterable[str], target: Mapping[str, float]) -> None:
        """Make heads look at a token without a value in each state in which they measure
        nothing."""
        places = list(states)
        for layer in range(self.shape.n_layer):
            self.key(layer, SINK, target)
            for head in range(self.shape.n_head):
                for state in places:
                    if not {(layer, head, state), (layer, head, ALWAYS)} & self.busy:
                        self.query(layer, head, SINK, state, SCORE)

    def finish(self) -> None:
        """Write the weights that the architecture needs in addition, after the weights of all
        tests."""

    # --- feed-forward -----------------------------------------------------------------------

    def unit(
        self,
        layer: int,
        gate: Mapping[str, float],
        up: Mapping[str, float],
        out: Mapping[str, float],
        *,
        last: bool = False,
    ) -> None:
        """Write a gated unit, which adds act(gate) * up to coordinates with these factors."""
        at = self.free_unit(layer, last=last)
        for matrix, parts in ((self.gate, gate), (self.up, up)):
            for name, value in parts.items():
                matrix[layer, at, self.coordinate(name)] = value / self.shape.unit
        for name, value in out.items():
            self.down[layer, self.coordinate(name), at] = value * SMALL

    def free_unit(self, layer: int, *, last: bool = False) -> int:
        at = self.shape.n_ff - 1 if last else next(self.units[layer])
        if at >= self.shape.n_ff - (not last):
            raise ValueError(f"no unit is left in layer {layer}: n_ff is {self.shape.n_ff}")
        return at


def free(elements: Sequence[int], used: Collection[Part], layers: Sequence[int]) -> int:
    for element in elements:
        if not any((layer, element) in used for layer in layers):
            return element
    raise ValueError(f"no element is left in all of the layers {layers}")
