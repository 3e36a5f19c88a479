"""A window that is longer than any prompt that is asked: where it ends is seen with a short one."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.split_files import open_model
from lockstep.harness.blackbox import windows
from lockstep.harness.blackbox.first_layers import write_first_layers
from lockstep.harness.blackbox.rewriting import Recipe, rewrite
from lockstep.harness.blackbox.windows import bisected
from lockstep.harness.check.check import Plan, run_suites
from lockstep.harness.context.suite import NoAnswer
from lockstep.harness.records import Verdict
from lockstep.harness.shadow.models import make_variant
from lockstep.harness.shadow.models import opened as opened_for_names
from lockstep.harness.synth.any_arch import variant_named, with_vocabulary
from tests.differential.conftest import OpenPlan
from tests.differential.test_first_layers import model_of

LONG = 600  # tokens: a check of a small model asks for 512
Says = Callable[..., list[Verdict]]


@pytest.fixture(scope="module")
def gemma3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("windows")
    model = folder / "gemma3.gguf"
    write_first_layers(model_of("gemma3", folder, n_layer=8), 7, model, window=LONG)
    return model


@pytest.fixture(scope="module")
def gemma3_in_f16(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("in-f16")
    whole, model = folder / "whole.gguf", folder / "gemma3.gguf"
    variant = with_vocabulary(variant_named("gemma3"), 5000)
    with opened_for_names() as session:
        make_variant(variant, whole, quant="F16", session=session)
    write_first_layers(whole, 2, model, window=LONG)
    return model


@pytest.fixture(scope="module")
def says(plan_for: Callable[..., Plan], open_for: OpenPlan) -> Says:
    """levels: all that an engine shows, if not tensors as well."""

    def verdicts(
        path: Path, *suites: str, levels: tuple[str, ...] = (), **plan: str
    ) -> list[Verdict]:
        asked = plan_for(path, suites=suites, by_name=True, **plan)
        with open_for(asked) as opened:
            context = opened.context
            if levels:
                info = replace(context.subject_info, levels=levels, shows_nodes=False)
                context = replace(context, subject_info=info)
            context.on_made_models = {windows.SUITE: partial(windows.checked, asked)}
            return list(run_suites(context, suites))

    return verdicts


@pytest.mark.parametrize("engine", ["reference", "fast", "honest:float64", "replay"])
def test_right_engines_agree_with_a_short_window(engine: str, gemma3: Path, says: Says) -> None:
    found = says(gemma3, "window", engine=engine)
    assert [v.status for v in found] == ["agreed"]
    assert found[0].summary.startswith(
        "with a window of 11 tokens in the place of 600, its first 6 of 7 layers: "
    )


@pytest.mark.parametrize("engine", ["mutant:window-one-more", "mutant:window-one-less"])
def test_a_window_that_ends_elsewhere_is_seen_and_its_place_named(
    engine: str, gemma3: Path, says: Says
) -> None:
    """Whatever else is asked does not show it: no prompt is as long."""
    others = says(gemma3, "logits", "decode", "trace", engine=engine)
    found = says(gemma3, "window", engine=engine)
    assert not any(v.status == "diverged" for v in others)
    assert [v.status for v in found] == ["diverged"]
    places = ", ".join(f"kq_soft_max-{layer}" for layer in range(5))  # the sixth has no window
    assert found[0].summary.endswith(f": {places}")


@pytest.mark.parametrize("levels", [("logits",), ("greedy",)])
def test_an_engine_that_shows_less_is_asked_as_well(
    levels: tuple[str, ...], gemma3: Path, says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = verdicts_with(levels, "reference", gemma3, says, monkeypatch)
    wrong = verdicts_with(levels, "mutant:window-ignored", gemma3, says, monkeypatch)
    assert [v.status for v in (*right, *wrong)] == ["agreed", "diverged"]
    assert "kq_soft_max" not in wrong[0].summary


def verdicts_with(
    levels: tuple[str, ...],
    engine: str,
    path: Path,
    says: Says,
    monkeypatch: pytest.MonkeyPatch,
) -> list[Verdict]:
    def opened(asker: windows.SliceAsker, plan: Plan) -> windows.Opened:
        found = right_way(asker, plan)
        info = replace(found.context.subject_info, levels=levels, shows=(), shows_nodes=False)
        found.context = replace(found.context, subject_info=info)
        return found

    right_way = windows.SliceAsker.open
    with monkeypatch.context() as patched:
        patched.setattr(windows.SliceAsker, "open", opened)
        return says(path, "window", levels=levels, engine=engine)


def test_where_the_window_is_within_what_is_asked_the_logits_say_it(
    tmp_path: Path, says: Says
) -> None:
    model = model_of("gemma3", tmp_path, n_layer=2)
    found = says(model, "window")
    assert [(v.status, "the usual run, with 34, shows it" in v.summary) for v in found] == [
        ("not-applicable", True)
    ]


def test_a_window_within_longer_runs_is_asked_about_as_well(
    gemma3: Path, tmp_path: Path, says: Says
) -> None:
    """A token more of 128 is lost in the logits of a quantised model, and traces are shorter."""
    model = tmp_path / "model.gguf"
    write_first_layers(gemma3, 2, model, window=128)
    found = says(model, "window", engine="mutant:window-one-more")
    assert [v.status for v in found] == ["diverged"]


def test_a_window_that_llama_cpp_makes_nothing_of_is_not_called_compared(
    tmp_path: Path, says: Says
) -> None:
    plain, model = model_of("qwen3", tmp_path, n_layer=2), tmp_path / "windowed.gguf"
    with open_model(plain) as file:
        keys = {"qwen3.attention.sliding_window": ("U32", LONG)}
        names = {name: name for name in file.tensors}
        rewrite(file, Recipe(names=names, keys=keys, stored=frozenset(names)), model)
    found = says(model, "window")
    assert [v.status for v in found] == ["not-applicable"]
    assert "gives the same logits with any window" in found[0].summary


def test_layers_that_are_others_in_a_shorter_model_are_not_asked(
    tmp_path: Path, says: Says
) -> None:
    whole, model = model_of("gemma2", tmp_path, n_layer=46), tmp_path / "windowed.gguf"
    write_first_layers(whole, 46, model, window=LONG)
    found = says(model, "window")
    assert [v.status for v in found] == ["not-applicable"]
    assert "is another one in a model of 2 layers" in found[0].summary


@pytest.mark.parametrize(
    ("takes", "status"), [("F16", "agreed"), ("whole vocabulary", "agreed"), ("", "not-applicable")]
)
def test_who_does_not_take_the_model_is_given_another_and_accused_of_nothing(
    takes: str, status: str, gemma3_in_f16: Path, says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    right_way = windows.SliceAsker.open

    def opened(asker: windows.SliceAsker, plan: Plan) -> windows.Opened:
        with open_model(plan.subject_model) as file:
            types = {info.type.name for info in file.tensors.values()}
            fits = {
                "F16": "F16" in types,
                "whole vocabulary": file.tensors["token_embd.weight"].ne[1] == 5000,
            }
        if not fits.get(takes):
            raise NoAnswer("not-compared", "it takes no such model", {})
        return right_way(asker, plan)

    monkeypatch.setattr(windows.SliceAsker, "open", opened)
    found = says(gemma3_in_f16, "window")
    assert [v.status for v in found] == [status]
    assert ("it takes no such model" in found[0].summary) is (status != "agreed")


def test_a_server_holds_another_model_only_if_somebody_gives_it_one(
    gemma3: Path, plan_for: Callable[..., Plan], open_for: OpenPlan
) -> None:
    plan = plan_for(gemma3)
    with open_for(plan) as opened:
        context = opened.context
        context.subject.name = "http://localhost:8080"
        found = list(windows.checked(plan, context))
    assert [v.status for v in found] == ["not-applicable"]
    assert f"lockstep slice {gemma3} -o short.gguf --window 11" in found[0].summary


def test_a_bisection_finds_the_place_with_a_short_window(
    gemma3: Path, plan_for: Callable[..., Plan], open_for: OpenPlan
) -> None:
    plan = plan_for(gemma3, engine="mutant:window-one-less")
    with open_for(plan) as opened:
        found = bisected(plan, opened.context)
    assert found is not None
    assert found.exit_code == 1
    assert [(c.layer, c.site.name) for c in found.culprits] == [
        (layer, "kq_soft_max") for layer in range(5)
    ]
    assert found.patched is not None
    assert found.patched.confirms


def test_a_window_of_a_model_without_one_is_no_slice(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="it has no window"):
        write_first_layers(
            model_of("qwen3", tmp_path, n_layer=2), 2, tmp_path / "short.gguf", window=11
        )
