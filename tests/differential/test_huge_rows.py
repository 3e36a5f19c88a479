"""Rows of real models: the first token's numbers are thousands of times larger than the others'.

In SmolLM2, numbers in the first row reach 24,955, but numbers in other rows only 8. So the first
row's honest error is as large as the numbers of other rows, and must not be allowed for those rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.node import Node
from lockstep.engine.ops.near import Expected
from lockstep.harness.graph.ways import Honest, Wide
from tests.recorded import BATCHES, LAYERS, Recorded, recorded

TABLE = "token_embd.weight"
HUGE = np.float32(2.0**18)  # makes the last bit of the first token's values a thirtieth


def with_huge_row(path: Path) -> None:
    """Multiply the first token's row in the table of embeddings."""
    token = BATCHES[0].tokens[0]
    with GgufFile.open(path) as file:
        start = file.data_offset + file.tensors[TABLE].offset
        table = file.raw(TABLE).view(np.float32).reshape(file.tensors[TABLE].ne[::-1])
        row = HUGE * table[token]
    with path.open("r+b") as out:
        out.seek(start + int(token) * row.nbytes)
        out.write(row.tobytes())


@pytest.fixture(scope="module")
def huge_row(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    with recorded("qwen3", tmp_path_factory.mktemp("models"), with_huge_row) as found:
        yield found


@dataclass(frozen=True)
class LeftOut(Honest):
    """An engine that adds only a part of the second layer's feed-forward output, except for the
    first token."""

    share: float

    def result(self, node: Node, found: Expected) -> NDArray[Any]:
        value = np.array(super().result(node, found))
        if node.name == "ffn_out-1":
            value[..., 1:, :] *= 1 - self.share
        return value


@pytest.mark.parametrize("share", [1.0, 0.01, 0.001])
def test_sum_that_omits_part_of_other_rows_is_found(share: float, huge_row: Recorded) -> None:
    found = huge_row.accused(huge_row.run(LeftOut(share=share)), LAYERS)
    assert [(str(f.site), f.layer) for f in found] == [("l_out-1", 1)]


@pytest.mark.parametrize("only", [(), LAYERS, ("l_out",)])
@pytest.mark.parametrize(
    ("way", "plain"), [(Honest(), False), (Honest(), True), (Wide(), False), (Wide(), True)]
)
def test_honest_engines_are_not_accused(
    way: Honest, plain: bool, only: tuple[str, ...], huge_row: Recorded
) -> None:
    assert huge_row.accused(huge_row.run(way, plain=plain), only) == []
