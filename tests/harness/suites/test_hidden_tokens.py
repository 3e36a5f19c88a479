"""Where one logit is so large that others are smaller than its errors, nothing is known of them."""

from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.suites.parts.hidden_tokens import hidden_tokens
from tests.harness.suites.test_whole_runs import verdicts_of
from tests.models import builtin


def test_tokens_with_some_logit_beyond_the_limit_are_seen() -> None:
    logits = np.ones((3, 200), np.float32)
    logits[1:] = 1e-9
    assert hidden_tokens(logits, 1e-6) == 0


def test_tokens_with_none_are_hidden() -> None:
    logits = np.full((3, 200), 1e-9, np.float32)
    logits[:, 5], logits[0, 6], logits[0, 7] = 1.0, np.nan, np.inf
    assert hidden_tokens(logits, 1e-6) == 197


def test_zeros_are_what_they_are_and_a_few_are_small_by_chance() -> None:
    logits = np.ones((3, 200), np.float32)
    logits[:, :50], logits[:, 60] = 0.0, 1e-9
    assert hidden_tokens(logits, 1e-6) == 0


@pytest.mark.parametrize("factor", [1.0, 2e9])
def test_an_agreement_says_of_how_many_tokens_nothing_is_known(
    factor: float, tmp_path: Path
) -> None:
    model = builtin("f32", tmp_path)
    with GgufFile.open(model) as file:
        info = file.tensors["output.weight"]
        at = file.data_offset + info.offset
    raw = bytearray(model.read_bytes())
    row = np.frombuffer(raw, "<f4", info.ne[0], at)
    raw[at : at + row.nbytes] = (row * np.float32(factor)).tobytes()
    (tmp_path / "large.gguf").write_bytes(raw)
    found = verdicts_of(tmp_path / "large.gguf", "logits")
    assert found[0].status == "agreed"
    rest = {v.status for v in found[1:]}
    assert rest <= {"agreed", "not-compared"}
    assert ("not-compared" in rest) == (factor > 1)
    text = f"not compared {info.ne[1] - 1} of {info.ne[1]} tokens"
    assert (text in found[0].summary) == (factor > 1)
