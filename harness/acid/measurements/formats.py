"""Tests of a quantised matrix. Only one unit is on, so one weight of each row shows.

A single nonzero number is exact, or nearly so, in every format of activations.
"""

import numpy as np

from lockstep.harness.acid.coded import FORMATS, decode, rows_of
from lockstep.harness.acid.measurements.base import AcidPlace, Measurement
from lockstep.harness.acid.measurements.feed_forward import HALF_BF16
from lockstep.harness.acid.weights import AcidWeights

ROWS = 3
SIZE = 1.5  # size of the largest value that a test should read


class CodedRows(Measurement):
    """Weight number `column` in each of three rows, whose blocks have one varying part."""

    reason = "seven roundings to BF16, which has room for the scales of activations in F16"

    def __init__(self, kind: str, part: str, column: int) -> None:
        both = FORMATS[kind].columns
        self.kind, self.part, self.column = kind, part, column
        self.name = f"{kind}-{part}-{column}"
        self.sees = f"{kind}: {part.replace('-', ' ')}, by weight {column} of {ROWS} rows"
        self.where = f"the last layer, ffn_down, which is {kind}"
        # a weight depends on all parts of its block, so a wrong part also changes plain weights
        self.rests_on = ("silu", *(f"{kind}-{p}-{c}" for p in FORMATS[kind].parts for c in both))
        self.catches = FORMATS[kind].parts[part].catches
        self.rows = rows_of(kind, part, column, ROWS)
        values = decode(kind, self.rows)[:, column]
        largest = float(np.abs(values).max())
        self.factor = 2.0 ** round(np.log2(SIZE / largest))
        self.right = tuple(float(v) * self.factor for v in values)
        off = SIZE / 4
        self.wrong = tuple(
            (
                f"row {i}, too {word}",
                tuple(v + sign * off * (i == j) for j, v in enumerate(self.right)),
            )
            for i in range(ROWS)
            for word, sign in (("small", -1), ("large", 1))
        )
        self.radius = 7 * HALF_BF16 * largest * self.factor

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        layer = w.shape.n_layer - 1
        w.gate[layer, self.column, w.coordinate(at.state)] = 8.0 / w.shape.unit
        # silu(8) times this is the factor for values of size SMALL
        w.up[layer, self.column, w.coordinate(at.state)] = self.factor / 8 / 8 / w.shape.unit
        for i, row in enumerate(self.rows):
            w.coded[w.coordinate(at.value(i))] = row.tobytes()


def tests_of_format(kind: str) -> tuple[Measurement, ...]:
    """Return the tests of a block format; none for other types."""
    if kind not in FORMATS:
        return ()
    form = FORMATS[kind]
    return tuple(CodedRows(kind, part, c) for part in form.parts for c in form.columns)
