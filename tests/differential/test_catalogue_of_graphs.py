"""Engines with wrong positions, attention, experts, caches, states or loops: a few of each kind."""

from collections.abc import Callable, Iterator

import pytest

from lockstep.harness.adapters.base import Adapter
from lockstep.harness.catalogue.run import wrong_engines
from lockstep.harness.catalogue.trial import TrialBench, bench_for, locate, try_wrong

SLICE = {
    "f32": (
        "mutant:rope-other-way",
        "mutant:mask-hidden-as-zero",
        "mutant:cache-one-slot-late",
        "mutant:state-stale-logits",
    ),
    "moe": ("mutant:experts-weights-by-id",),
    "arch:mamba": ("mutant:conv-state-one-late",),
}


@pytest.fixture(scope="module")
def bench_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], TrialBench]]:
    wrong_engines()
    made: dict[str, TrialBench] = {}

    def bench(model: str) -> TrialBench:
        if model not in made:
            made[model] = bench_for(model, tmp_path_factory.mktemp("bench"))
        return made[model]

    yield bench
    for each in made.values():
        each.opened.close()


@pytest.mark.parametrize(
    ("model", "name"), [(model, name) for model, names in SLICE.items() for name in names]
)
def test_wrong_engine_is_located(
    model: str, name: str, bench_of: Callable[[str], TrialBench]
) -> None:
    found = try_wrong(bench_of(model), Adapter.member(name), model)
    assert found.views["tensors"].caught
    assert found.found == found.expected
    assert found.layer_right
    assert found.confirmed


def test_leak_between_sequences_shows_only_with_another_sequence(
    bench_of: Callable[[str], TrialBench],
) -> None:
    """The first traced run has no wrong op, so bisect also traces the other runs."""
    bench = bench_of("f32")
    found = try_wrong(bench, Adapter.member("mutant:cache-sequences-leak"), "f32")
    assert found.found == "logits"
    assert "beside another sequence" in found.views["tensors"].said
    assert locate(bench, "mutant:cache-sequences-leak").found == "kq_soft_max-0"
