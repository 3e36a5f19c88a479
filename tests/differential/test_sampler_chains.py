"""A thousand chains on ten thousand rows: our mirror has llama.cpp's bits, and known accidents
explain every difference from the definition."""

from pathlib import Path

import pytest

from lockstep.engine.samplers.parts.constructors import BY_SAMPLER
from lockstep.harness.synth.builtin import BUILTIN_VOCABULARIES
from tests.models import with_metadata
from tests.sampler_figures import measure


@pytest.mark.parametrize("engine", ["llama.cpp", "reference"])
def test_known_accidental_behaviour_explains_every_list_of_a_chain(
    engine: str, tmp_path: Path
) -> None:
    model = with_metadata(tmp_path / "vocabulary.gguf", BUILTIN_VOCABULARIES["llama"])
    found = measure(1000, model, engine)
    assert (found.chains, found.rows) == (1000, 10_000)
    assert {*found.samplers} == {*BY_SAMPLER}
    assert found.unexplained == []
    assert not any(found.mirror.values())
    assert bool(found.accidents) is (engine == "llama.cpp")
