"""A mistake in weights of some types does not apply to a file without them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.batch import Batch
from lockstep.harness.adapters import adapter_class
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.asking.session import LocalSession
from lockstep.harness.records import EXACT, Answered, Request
from tests.models import written

OF = [
    ("mutant:activations-in-bf16", "F16", "F32"),
    ("mutant:activations-of-f32-in-bf16", "F32", "F16"),
    ("mutant:activation-sums-reversed", "Q2_K", "Q4_K"),
    ("mutant:embeddings-in-half", "F32", "BF16"),
    ("mutant:embeddings-dropped", "Q8_0", "F16"),
]


def logits(cls: type[Any], path: Path) -> Any:
    session = LocalSession(cls, path, EXACT)
    outcome = session.ask("evaluate", Request(batches=(Batch.of([7, 3, 250, 90]),)))
    session.close()
    assert isinstance(outcome, Answered)
    return outcome.value.logits[0]


def same_as_right(name: str, quant: str, folder: Path) -> bool:
    width = 256 if quant.endswith("_K") else 32
    recipe = {"n_layer": 1, "n_embd": width, "n_ff": width, "vocabulary": False}
    path = written(folder, f"{quant}.gguf", seed=3, quant=quant, **recipe)
    return np.array_equal(logits(adapter_class(name), path), logits(Reference, path))


@pytest.mark.parametrize(("name", "own", "other"), OF)
def test_mistake_in_one_weight_type_is_not_named_for_other_types(
    name: str, own: str, other: str, tmp_path: Path
) -> None:
    assert not same_as_right(name, own, tmp_path)
    assert same_as_right(name, other, tmp_path)
