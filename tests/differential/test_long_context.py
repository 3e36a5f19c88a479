"""Models with a window longer than any prompt. With a shorter window, a prompt reaches its end."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from lockstep.engine.architectures.gemma3 import Gemma3
from lockstep.engine.architectures.phi3 import Phi3
from lockstep.engine.architectures.step import Step
from lockstep.engine.gguf.split_files import open_model
from lockstep.harness.blackbox import long_context
from lockstep.harness.blackbox.long_context import bisect_long_context
from lockstep.harness.blackbox.rewriting import Recipe, rewrite
from lockstep.harness.blackbox.slices import architecture, first_layers
from lockstep.harness.catalogue.models import model_for, with_keys, with_long_factors
from lockstep.harness.check.check import Opened, Plan, run_suites
from lockstep.harness.context.suite import NoAnswer
from lockstep.harness.records import Verdict
from lockstep.harness.shadow.models import make_variant
from lockstep.harness.shadow.models import open_for_variants as opened_for_names
from lockstep.harness.synth.any_arch import variant_named, with_vocabulary
from tests.differential.conftest import OpenPlan
from tests.differential.test_first_layers import model_of
from tests.quiet_engines import OnlyEmbeds

LONG = 600  # tokens; a check of a small model uses 512
ORIGINAL = 4096  # original context of Phi-3
WINDOWED = (0, 1, 2, 3, 4, 6)  # layers with a window among the first seven of gemma3
Says = Callable[..., list[Verdict]]


def windowed(whole: Path, n: int, model: Path, window: int) -> None:
    """Return the first layers, with another window."""
    with open_model(whole) as file:
        key = f"{architecture(file)}.attention.sliding_window"
        rewrite(file, first_layers(file, n, {key: ("U32", window)}), model)


@pytest.fixture(scope="module")
def phi3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("factors")
    with_long_factors(model_for("arch:phi3", folder), folder / "phi3.gguf", ORIGINAL)
    return folder / "phi3.gguf"


@pytest.fixture(scope="module")
def gemma3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("windows")
    model = folder / "gemma3.gguf"
    windowed(model_of("gemma3", folder, n_layer=9), 8, model, LONG)
    return model


@pytest.fixture(scope="module")
def gemma3_in_f16(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("in-f16")
    whole, model = folder / "whole.gguf", folder / "gemma3.gguf"
    variant = with_vocabulary(variant_named("gemma3"), 5000)
    with opened_for_names() as session:
        make_variant(variant, whole, quant="F16", session=session)
    windowed(whole, 2, model, LONG)
    return model


@pytest.fixture(scope="module")
def says(plan_for: Callable[..., Plan], open_for: OpenPlan) -> Says:
    """Return a function that returns the verdicts of check. levels: the engine's levels, if it
    shows no tensors."""

    def verdicts(
        path: Path, *suites: str, levels: tuple[str, ...] = (), **plan: str
    ) -> list[Verdict]:
        asked = plan_for(path, suites=suites, by_name=True, **plan)
        with open_for(asked) as opened:
            context = opened.context
            if levels:
                info = replace(context.subject_info, levels=levels, shows_nodes=False)
                context = replace(context, subject_info=info)
            context.on_made_models = {
                long_context.SUITE: partial(long_context.check_long_context, asked)
            }
            return list(run_suites(context, suites))

    return verdicts


@pytest.mark.parametrize("engine", ["reference", "fast", "honest:float64", "replay"])
def test_right_engines_agree_with_a_short_window(engine: str, gemma3: Path, says: Says) -> None:
    found = says(gemma3, "long-context", engine=engine)
    assert [v.status for v in found] == ["agreed"]
    assert found[0].summary.startswith(
        "with a window of 10 tokens instead of 600, its first 7 of 8 layers: "
    )


@pytest.mark.parametrize("engine", ["reference", "fast", "honest:rope-float64", "replay"])
def test_right_engines_agree_with_a_short_original_context(
    engine: str, phi3: Path, says: Says
) -> None:
    found = says(phi3, "long-context", engine=engine)
    assert [v.status for v in found] == ["agreed"]
    assert found[0].summary.startswith(
        "with an original context of 4 tokens instead of 4096, its first 2 of 2 layers: "
    )


def test_engine_with_short_factors_in_long_contexts_is_found(phi3: Path, says: Says) -> None:
    engine = "mutant:rope-short-factors-alone"
    others = says(phi3, "logits", "decode", "trace", engine=engine)
    found = says(phi3, "long-context", engine=engine)
    assert not any(v.status == "diverged" for v in others)
    assert [v.status for v in found] == ["diverged"]
    assert found[0].summary.endswith(": Qcur_rope-0, Kcur_rope-0, Qcur_rope-1, Kcur_rope-1")


class Within(Step):
    window: ClassVar[int]

    def attend(self, *args: Any) -> Any:  # type: ignore[override]
        return super().attend(*args, window=self.window)


def test_engine_with_a_window_that_llama_cpp_lacks_is_not_accused(
    phi3: Path, tmp_path: Path, says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Phi-3's published code uses the window, but llama.cpp does not. So no window is compared."""
    model = tmp_path / "model.gguf"
    windowed(phi3, 2, model, 2047)
    right = Phi3.forward

    def with_window(self: Phi3, step: Step) -> Any:
        key = "phi3.attention.sliding_window"
        Within.window = self.tensors.weights.file.metadata[key].data
        return right(self, Within(step.batch, step.memory, step.ops, step.probe, step.flash_attn))

    monkeypatch.setattr(Phi3, "forward", with_window)
    found = says(model, "long-context")
    assert [v.status for v in found] == ["agreed"]
    assert "a window" not in found[0].summary


def test_engine_that_chooses_rope_factors_by_text_length_agrees(
    phi3: Path, says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers chooses by the text's length. llama.cpp chooses by the number of tokens that a
    context can hold.

    So llama.cpp uses the long factors for a short text in a large context (its issue 24823).
    """

    def by_the_text(self: Phi3, step: Any) -> Any:
        self.n_ctx = int(step.batch.positions.max()) + 1
        return right(self, step)

    right = Phi3.forward
    monkeypatch.setattr(Phi3, "forward", by_the_text)
    found = says(phi3, "logits", "decode", "trace", "long-context")
    assert {v.status for v in found} == {"agreed"}


def test_answers_agree_though_a_later_question_kills_the_oracle(
    gemma3: Path, says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: Any) -> str:
        raise NoAnswer("crashed", "llama.cpp crashed in evaluate", {})

    monkeypatch.setattr(long_context, "too_coarse", dies)
    (found,) = says(gemma3, "long-context")
    assert found.status == "agreed"
    assert found.summary.endswith(
        "mistakes below the limit are unknown: llama.cpp crashed in evaluate"
    )


@pytest.mark.parametrize("engine", ["mutant:window-one-more", "mutant:window-one-less"])
def test_wrong_window_edge_is_found_and_located(engine: str, gemma3: Path, says: Says) -> None:
    """No other question shows this fault, because no other prompt is as long."""
    others = says(gemma3, "logits", "decode", "trace", engine=engine)
    found = says(gemma3, "long-context", engine=engine)
    assert not any(v.status == "diverged" for v in others)
    assert [v.status for v in found] == ["diverged"]
    places = ", ".join(f"kq_soft_max-{layer}" for layer in WINDOWED)
    assert found[0].summary.endswith(f": {places}")


def test_report_says_window_may_be_hard_coded(
    gemma3: Path, says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine with a hard-coded window is right on the unchanged model.

    An engine without a window is wrong on that model.
    """
    right_way, text = Gemma3.window, "it ignores the key, or has the number in its code"
    (other,) = says(gemma3, "long-context", engine="mutant:window-one-more")
    monkeypatch.setattr(Gemma3, "window", lambda graph, il: right_way(graph, il) and LONG)
    (fixed,) = says(gemma3, "long-context")
    assert (fixed.status, other.status) == ("diverged", "diverged")
    assert (text in fixed.summary, text in other.summary) == (True, False)


def test_full_attention_in_the_last_layer_is_found(
    gemma3: Path, says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that treats gemma3 like gemma4, whose last layer sees all tokens, would be right by
    chance with six layers."""
    right_way = Gemma3.window

    def window(graph: Gemma3, layer: int) -> int:
        return 0 if layer == graph.hparams.n_layer - 1 else right_way(graph, layer)

    monkeypatch.setattr(Gemma3, "window", window)
    found = says(gemma3, "long-context")
    assert [v.status for v in found] == ["diverged"]
    assert found[0].summary.endswith(": kq_soft_max-6")


@pytest.mark.parametrize("levels", [("logits",), ("greedy",)])
def test_engine_without_tensors_is_tested_too(
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
    def opened(asker: long_context.SliceAsker, plan: Plan) -> Opened:
        found = right_way(asker, plan)
        info = replace(found.context.subject_info, levels=levels, shows=(), shows_nodes=False)
        found.context = replace(found.context, subject_info=info)
        return found

    right_way = long_context.SliceAsker.open
    with monkeypatch.context() as patched:
        patched.setattr(long_context.SliceAsker, "open", opened)
        return says(path, "long-context", levels=levels, engine=engine)


def test_long_context_does_not_apply_if_the_usual_run_has_the_window(
    tmp_path: Path, says: Says
) -> None:
    model = model_of("gemma3", tmp_path, n_layer=2)
    found = says(model, "long-context")
    assert [(v.status, v.summary) for v in found] == [
        ("not-applicable", "no part of the model needs a longer text than the usual run")
    ]


def test_window_shorter_than_a_longer_run_is_tested(
    gemma3: Path, tmp_path: Path, says: Says
) -> None:
    """One additional token beyond 128 is lost in the noise of a quantised model's logits, and
    traces are shorter than the window."""
    model = tmp_path / "model.gguf"
    windowed(gemma3, 2, model, 128)
    found = says(model, "long-context", engine="mutant:window-one-more")
    assert [v.status for v in found] == ["diverged"]


@pytest.mark.parametrize("engine", ["reference", "mutant:mask-hidden-as-zero"])
def test_window_that_llama_cpp_ignores_is_not_applicable(
    engine: str, tmp_path: Path, says: Says
) -> None:
    """The report does not claim that the window was compared, and accuses no engine that uses it.

    llama.cpp ignores the window of phi3, and uses 4096 for smallthinker whatever the file says.
    """
    model = tmp_path / "windowed.gguf"
    windowed(model_of("phi3", tmp_path, n_layer=2), 2, model, LONG)
    found = says(model, "long-context", engine=engine)
    assert [v.status for v in found] == ["not-applicable"]
    assert "gives the same logits without" in found[0].summary


@pytest.mark.parametrize("engine", ["replay", OnlyEmbeds.name])
def test_model_without_logits_is_asked_for_embeddings(
    engine: str, tmp_path: Path, says: Says
) -> None:
    """None of our engines has a symmetric window, so only llama.cpp is compared."""
    model = tmp_path / "windowed.gguf"
    windowed(model_of("modern-bert", tmp_path, n_layer=3), 3, model, LONG)
    found = says(model, "long-context", engine=engine)
    assert [v.status for v in found] == ["agreed"]
    assert "of the largest embedding" in found[0].summary


def test_window_missing_from_the_file_is_known(tmp_path: Path, says: Says) -> None:
    """Early gemma2 files lack the key, and llama.cpp then uses 4096."""
    whole, model = model_of("gemma2", tmp_path, n_layer=2), tmp_path / "unsaid.gguf"
    with open_model(whole) as file:
        names = {name: name for name in file.tensors}
        without = frozenset({"gemma2.attention.sliding_window"})
        rewrite(file, Recipe(names=names, without=without, stored=frozenset(names)), model)
    found = says(model, "long-context", engine="mutant:window-one-more")
    assert [v.status for v in found] == ["diverged"]
    assert "with a window of 10 tokens instead of 4096" in found[0].summary


def test_wrong_attention_scale_at_large_distance_is_found(tmp_path: Path, says: Says) -> None:
    """Mistral Large 3 scales attention by position, and has the graph of deepseek2."""
    model = tmp_path / "scaled.gguf"
    keys = {
        "deepseek2.attention.temperature_length": ("U32", 8192),
        "deepseek2.attention.temperature_scale": ("F32", 0.1),
    }
    with_keys(model_for("arch:deepseek2", tmp_path), model, keys)
    found = says(model, "long-context", engine="replay")
    assert [v.status for v in found] == ["agreed"]
    assert "with attention scaled every 10 tokens instead of every 8192" in found[0].summary


def test_layers_that_change_in_a_shorter_model_are_not_tested(
    tmp_path: Path, says: Says, plan_for: Callable[..., Plan], open_for: OpenPlan
) -> None:
    whole, model = model_of("gemma2", tmp_path, n_layer=46), tmp_path / "windowed.gguf"
    windowed(whole, 46, model, LONG)
    found = says(model, "long-context")
    assert [v.status for v in found] == ["not-applicable"]
    assert "changes in a model of 3 layers" in found[0].summary
    plan = plan_for(model)
    with open_for(plan) as opened:
        assert bisect_long_context(plan, opened.context) is None


@pytest.mark.parametrize(
    ("takes", "status"), [("F16", "agreed"), ("whole vocabulary", "agreed"), ("", "not-applicable")]
)
def test_engine_that_refuses_the_model_gets_another_model(
    takes: str, status: str, gemma3_in_f16: Path, says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    right_way = long_context.SliceAsker.open

    def opened(asker: long_context.SliceAsker, plan: Plan) -> Opened:
        with open_model(plan.subject_model) as file:
            types = {info.type.name for info in file.tensors.values()}
            fits = {
                "F16": "F16" in types,
                "whole vocabulary": file.tensors["token_embd.weight"].ne[1] == 5000,
            }
        if not fits.get(takes):
            raise NoAnswer("not-compared", "it takes no such model", {})
        return right_way(asker, plan)

    monkeypatch.setattr(long_context.SliceAsker, "open", opened)
    found = says(gemma3_in_f16, "long-context")
    assert [v.status for v in found] == [status]
    assert ("it takes no such model" in found[0].summary) is (status != "agreed")


def test_server_at_an_address_is_asked_only_about_its_own_model(
    gemma3: Path, plan_for: Callable[..., Plan], open_for: OpenPlan
) -> None:
    plan = plan_for(gemma3)
    with open_for(plan) as opened:
        context = opened.context
        context.subject.name = "http://localhost:8080"
        found = list(long_context.check_long_context(plan, context))
    assert [v.status for v in found] == ["not-applicable"]
    assert f"lockstep slice {gemma3} -o short.gguf --short" in found[0].summary


def test_a_bisection_finds_the_place_with_a_short_window(
    gemma3: Path, plan_for: Callable[..., Plan], open_for: OpenPlan
) -> None:
    plan = plan_for(gemma3, engine="mutant:window-one-less")
    with open_for(plan) as opened:
        found = bisect_long_context(plan, opened.context)
    assert found is not None
    assert found.exit_code == 1
    assert [(c.layer, c.site.name) for c in found.culprits] == [
        (layer, "kq_soft_max") for layer in WINDOWED
    ]
    assert found.patched is not None
    assert found.patched.confirms
