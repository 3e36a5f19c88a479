"""Servers do not report their cache type, so F32 and F16 caches are both honest."""

from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.records import DEFAULT, EXACT, Settings, Verdict
from tests.fake_server import serving
from tests.harness.check.test_check import plan_for, verdicts_of
from tests.models import written


def with_times(model: Path, name: str, factor: float) -> Path:
    """Return the model with a weight of its first layer scaled."""
    with GgufFile.open(model) as file:
        tensor = file.tensors[f"blk.0.{name}.weight"]
        at, n = file.data_offset + tensor.offset, int(np.prod(tensor.ne))
    raw = bytearray(model.read_bytes())
    values = np.frombuffer(raw, np.float32, n, at) * np.float32(factor)
    raw[at : at + 4 * n] = values.astype(np.float32).tobytes()
    made = model.with_name(f"{name}-times-{factor}.gguf")
    made.write_bytes(raw)
    return made


@pytest.fixture(scope="module")
def keys_matter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a model with large scores. Rounding its keys to F16 moves logits further than honest
    runs with an F16 cache differ."""
    folder = tmp_path_factory.mktemp("caches")
    return with_times(written(folder, seed=0, n_layer=1, n_embd=32, n_ff=64), "attn_k", 8)


def asked(model: Path, address: str, settings: Settings) -> list[Verdict]:
    return verdicts_of(
        plan_for(
            model,
            engine=address,
            oracle="llama.cpp",
            settings=settings,
            suites=("logprobs",),
            n_tokens=24,
        )
    )


def test_server_with_an_f32_cache_is_not_accused(keys_matter: Path) -> None:
    with serving(keys_matter) as address:
        (found,) = asked(keys_matter, address, DEFAULT)
        assert found.status == "agreed", found
        assert "compared with an honest run of another design" in found.summary
        detail = found.detail
        assert detail["worst_relative_to_largest_logit"] <= detail["allowed_relative"]
        (exactly,) = asked(keys_matter, address, EXACT)
        assert exactly.status == "agreed", exactly
        assert "another design" not in exactly.summary  # the run has llama.cpp's own design


@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_engine_with_scores_off_by_a_hundredth_diverges(keys_matter: Path, factor: float) -> None:
    wrong = with_times(keys_matter, "attn_q", factor)
    with serving(wrong) as address:
        found = asked(keys_matter, address, DEFAULT)
        assert found[0].status == "diverged", found
        assert found[0].detail["at_fault"] == "subject"
