"""The cells of a saved stream: the position and the sequences of each cell."""

from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.states.fields import I32, U32, StateFields, expect_between, refuse

MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ in llama.cpp
EXTRA = 3  # number of int32 in a cell with two-dimensional positions: x, y and the token


@dataclass(frozen=True, slots=True, eq=False)
class SavedPositions:
    """Cells of a saved stream.

    positions, counts: (cells,), the position and the number of sequences of each cell; ids: the
    sequences of all cells, one cell after the other. In a file of one sequence, a recurrent state
    has no ids.
    """

    positions: NDArray[np.int32]
    counts: NDArray[np.int32]
    ids: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.positions)

    def sequences(self) -> list[int]:
        """Return the sequences that have a cell, in ascending order."""
        found: list[int] = np.unique(self.ids).tolist()
        return found


def read_cells(fields: StateFields, n_ids: int | None, *, extra: bool) -> SavedPositions:
    """Read the number of cells, then the cells.

    n_ids: the number of sequences of each cell in a file of one sequence; None: each cell has 1 or
    more. extra: see `StateLayout`.
    """
    more = 4 * EXTRA if extra else 0
    start = fields.at
    n = fields.count("n_cells", 8 + more + 4 * (1 if n_ids is None else n_ids))
    positions, counts, ids = array("i"), array("i"), array("i")
    least, most = (1, MAX_SEQUENCES) if n_ids is None else (n_ids, n_ids)
    for cell in range(n):
        at = fields.at
        position = fields.number(I32, "pos")
        expect_between(position, 0, 2**31 - 1, "position", at, f"the position of cell {cell}")
        count = fields.number(U32, "n_sequences")
        expect_between(count, least, most, "count", at + 4, f"the sequences of cell {cell}")
        if extra:
            for name in ("x", "y", "cell_token"):
                fields.number(I32, name)
        before = -1
        for _ in range(count):
            at = fields.at
            id = fields.number(I32, "sequence")
            expect_between(
                id, before + 1, MAX_SEQUENCES - 1, "sequence", at, f"a sequence of cell {cell}"
            )
            before = id
            ids.append(id)
        positions.append(position)
        counts.append(count)
    found = SavedPositions(*(np.array(each, np.int32) for each in (positions, counts, ids)))
    if n_ids == 1 and (found.ids != found.ids[:1]).any():
        other = int(np.argmax(found.ids != found.ids[0]))
        text = f"cell {other} is of sequence {ids[other]}, expected {ids[0]} as in cell 0"
        refuse("sequence", start + 4 + other * (12 + more), text)
    if not extra:  # the parts of an image share a position
        check_places(found, start + 4)
    return found


def check_places(cells: SavedPositions, start: int) -> None:
    """Check that no sequence has two cells at one position. Raises MalformedFile. start: offset of
    the first cell.
    """
    counts = np.maximum(cells.counts, 1)
    owners = cells.ids if len(cells.ids) else np.zeros(len(cells), np.int32)
    places = np.repeat(cells.positions, counts).astype(np.int64) * MAX_SEQUENCES + owners
    _, first, back = np.unique(places, return_index=True, return_inverse=True)
    again = np.flatnonzero(first[back] != np.arange(len(places)))
    if len(again):
        position, id = divmod(int(places[again[0]]), MAX_SEQUENCES)
        cell = int(np.repeat(np.arange(len(cells)), counts)[again[0]])
        at = start + 8 * cell + 4 * int(cells.counts[:cell].sum())
        text = f"cell {cell}: sequence {id} has position {position} twice, expected once"
        refuse("duplicate", at, text)
