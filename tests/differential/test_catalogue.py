"""A few wrong engines in each view of the catalogue: all tensors, logits, text."""

from collections.abc import Iterator

import pytest

from lockstep.harness.adapters.base import Adapter
from lockstep.harness.catalogue.fixed_limits import LIMITS
from lockstep.harness.catalogue.run import honest_engines, wrong_engines
from lockstep.harness.catalogue.trial import TrialBench, bench_for, try_honest, try_wrong
from lockstep.harness.honest.sigmoids import SiluTanh

HANDFUL = (
    "mutant:norm-without-weight",
    "mutant:gate-and-up-exchanged",
    "mutant:last-column-dropped",
    "mutant:logits-of-the-row-before",
    "mutant:greedy-second-best",
    "mutant:arrays-cut",
    "mutant:first-layer-twice",
)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrialBench]:
    wrong_engines(), honest_engines()
    made = bench_for("f32", tmp_path_factory.mktemp("bench"))
    yield made
    made.opened.close()


@pytest.mark.parametrize("name", HANDFUL)
def test_wrong_engines_of_different_families_are_located(name: str, bench: TrialBench) -> None:
    found = try_wrong(bench, Adapter.member(name), "f32")
    assert found.views["tensors"].caught
    assert found.layer_right
    assert found.op_right
    assert found.confirmed


def test_wrong_greedy_loop_shows_only_in_text(bench: TrialBench) -> None:
    found = try_wrong(bench, Adapter.member("mutant:greedy-second-best"), "f32")
    assert found.views["text"].caught
    assert found.found == "decode"
    assert all(found.passes.values())


@pytest.mark.parametrize("name", ["beginning-of-last", "of-the-same-length", "keeps-last-32"])
def test_wrong_prompt_cache_hits_show_despite_right_logits(name: str, bench: TrialBench) -> None:
    found = try_wrong(bench, Adapter.member(f"mutant:prompt-{name}"), "f32")
    assert all(seen.caught for seen in found.views.values())
    assert "seeded tokens the engine chooses" in found.views["logits"].said
    assert found.found == "decode"


def test_tiny_fault_shows_in_tensors_and_passes_every_fixed_limit(
    bench: TrialBench,
) -> None:
    found = try_wrong(bench, Adapter.member("mutant:eps-outside-root"), "f32")
    assert found.views["tensors"].caught
    assert found.views["text"].suite == "black-box"
    assert found.op_right
    assert found.passes == dict.fromkeys(LIMITS, True)


def test_honest_engine_is_accused_in_no_view(bench: TrialBench) -> None:
    found = try_honest(bench, SiluTanh, "f32")
    assert not any(seen.caught for seen in found.views.values())
    assert all(seen.compared for seen in found.views.values())
    assert found.found == "nowhere"
