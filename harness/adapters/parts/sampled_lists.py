"""Lists of candidates, joined into the arrays of an answer."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.harness.records import SampleAnswer


class SampledList(NamedTuple):
    """The candidates after one stage, for one row."""

    ids: NDArray[np.int32]
    logits: NDArray[np.float32]
    p: NDArray[np.float32]
    selected: int  # id of the selected token; -1: none
    sorted: bool | None = None  # the engine's own flag; None: not shown


def join_lists(rows: Sequence[Sequence[SampledList]]) -> SampleAnswer:
    """Return the answer with these lists. rows: the lists after each stage, for each row."""
    every = [each for row in rows for each in row]
    shape = (len(rows), len(rows[0]) if rows else 0)
    says = [each.sorted for each in every]
    return SampleAnswer(
        sizes=np.array([len(each.ids) for each in every], np.int32).reshape(shape),
        selected=np.array([each.selected for each in every], np.int32).reshape(shape),
        ids=np.concatenate([np.zeros(0, np.int32), *(each.ids for each in every)]),
        logits=np.concatenate([np.zeros(0, np.float32), *(each.logits for each in every)]),
        p=np.concatenate([np.zeros(0, np.float32), *(each.p for each in every)]),
        sorted=None if None in says else np.array(says, np.bool_).reshape(shape),
    )


def split_lists(answer: SampleAnswer) -> list[list[SampledList]]:
    """Return the lists after each stage, for each row."""
    rows, stages = answer.sizes.shape
    edges = np.concatenate([[0], np.cumsum(answer.sizes.reshape(-1))])
    found: list[list[SampledList]] = []
    for row in range(rows):
        found.append([])
        for stage in range(stages):
            at = row * stages + stage
            part = slice(int(edges[at]), int(edges[at + 1]))
            says = None if answer.sorted is None else bool(answer.sorted[row, stage])
            held = answer.ids[part], answer.logits[part], answer.p[part]
            found[-1].append(SampledList(*held, int(answer.selected[row, stage]), says))
    return found
