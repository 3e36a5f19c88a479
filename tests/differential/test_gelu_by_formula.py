"""The suites distinguish tanh GELU from erf GELU, although they differ by less than a step of
ggml's table of halves."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.node import Node
from lockstep.engine.ops import functions
from lockstep.engine.ops.near import Expected
from lockstep.harness.graph.ways import Honest, Noisy, Wide
from tests.recorded import Recorded, recorded

# with noise, some numbers read another entry of the table in four of six layers
TOKENS = tuple(int(n) for n in np.random.default_rng(6).integers(0, 128, 32))


@dataclass(frozen=True)
class ByErf(Honest):
    """An engine that uses erf GELU for a file that requires tanh GELU."""

    def result(self, node: Node, found: Expected) -> NDArray[Any]:
        if node.op != "GEGLU":
            return super().result(node, found)
        gate, up = node.wide(0), node.wide(1)
        value = 0.5 * gate * (1 + functions.erf(gate / np.sqrt(2))) * up
        return value.astype(np.float32)


@pytest.fixture(scope="module")
def gemma3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    folder = tmp_path_factory.mktemp("models")
    with recorded("gemma3", folder, batches=(Batch.of(TOKENS),)) as found:
        yield found


def test_the_exact_gelu_is_found_in_every_layer(gemma3: Recorded) -> None:
    gates = {str(w.site) for w in gemma3.wires.values() if w.site.name == "ffn_geglu"}
    assert len(gates) > 1
    assert {str(f.site) for f in gemma3.accused(gemma3.run(ByErf(), plain=True))} == gates


@pytest.mark.parametrize(
    ("way", "plain"), [(Honest(), False), (Noisy(seed=3), False), (Honest(), True), (Wide(), True)]
)
def test_gelu_by_tanh_is_accepted_with_and_without_a_table(
    way: Honest, plain: bool, gemma3: Recorded
) -> None:
    assert gemma3.accused(gemma3.run(way, plain=plain)) == []
