"""Several prompts in sequence, on the first layer of a model. On the whole of such a model, prompts
prove nothing."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.blackbox.own_prompts import (
    WHERE,
    check_long_prompts,
    check_own_prompts,
    first_layer,
)
from lockstep.harness.catalogue.models import rewrite
from lockstep.harness.check.check import open_plan
from lockstep.harness.records import Verdict
from lockstep.harness.suites import decode
from tests.black_boxes import one_layer_of, with_made_models
from tests.harness.check.test_check import plan_for
from tests.models import builtin
from tests.quiet_engines import Quiet


def asked(model: Path, engine: str) -> list[Verdict]:
    plan = plan_for(model, engine=engine, oracle="llama.cpp", n_tokens=32)
    with closing(open_plan(plan, lambda _: None)) as opened:
        return list(check_own_prompts(plan, opened.context))


@pytest.mark.parametrize(
    ("mistake", "look"),
    [
        ("mutant:prompt-keeps-last-32", "look at prompts that are cut"),
        ("mutant:prompt-of-the-same-length", "or mistaken for one of the same length"),
        ("mutant:prompt-beginning-of-last", "look at the prompt cache"),
    ],
)
def test_engine_that_cuts_or_mixes_prompts_is_found_on_the_first_layer(
    mistake: str, look: str, tmp_path: Path
) -> None:
    (found,) = asked(builtin("q4_0", tmp_path), mistake)
    assert (found.status, found.key) == ("diverged", "decode/other prompt")
    assert found.detail["at_fault"] == "subject"
    assert look in found.summary


@pytest.mark.parametrize("engine", ["reference", "honest:float64", "honest:sums-one-by-one"])
@pytest.mark.parametrize("model", ["q4_0", "moe-q8_0"])
def test_honest_engine_is_right_after_all_prompts(engine: str, model: str, tmp_path: Path) -> None:
    (found,) = asked(builtin(model, tmp_path), engine)
    assert found.status == "agreed"
    assert found.summary.startswith(f"{WHERE}the next token is the same after ")


@pytest.mark.parametrize("arch", ["gemma3", "gpt2", "gpt-oss", "rwkv6", "mamba", "deepseek2"])
def test_other_architectures_are_tested_too(arch: str, tmp_path: Path) -> None:
    """The models have windows, learned positions, sinks, states, or keys and values in one
    vector."""
    (found,) = asked(one_layer_of(arch, tmp_path), "replay")
    assert found.status == "agreed"


def test_suite_gives_no_verdict_if_no_prompt_shows_a_difference(tmp_path: Path) -> None:
    """The soft cap of a gemma2 makes large logits tie."""
    model = one_layer_of("gemma2", tmp_path)
    rewrite(
        model,
        "token_embd.weight",
        lambda rows: np.multiply(rows["x"], np.float32(1024), out=rows["x"]),
    )
    assert asked(model, "replay") == []


@pytest.mark.parametrize(
    ("arch", "loud"),
    [("gemma2", "post_attention_norm"), ("llama", "attn_output"), ("gpt-oss", "attn_output")],
)
def test_amplified_tensor_is_the_attention_output_after_its_norm(
    arch: str, loud: str, tmp_path: Path
) -> None:
    """gpt-oss uses the name of this norm for the norm before its FFN, and has no norm after
    attention."""
    with GgufFile.open(one_layer_of(arch, tmp_path)) as file:
        changed = first_layer(file).changes
    assert {name.split(".")[2] for name in changed if name.startswith("blk.")} == {loud}


def test_prompts_show_differences_on_a_generated_gemma2(tmp_path: Path) -> None:
    (found,) = asked(one_layer_of("gemma2", tmp_path), "replay")
    assert found.status == "agreed"


def test_engine_that_fails_on_an_untrained_model_is_not_blamed(
    tmp_path: Path,
) -> None:
    class FailsBehindMany(Reference, name="own prompts: fails behind many"):
        def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
            if len(prompt) > 32:
                raise RuntimeError("no room")
            return super().greedy(prompt, n)

    (found,) = asked(builtin("q4_0", tmp_path), FailsBehindMany.name)
    assert found.status == "not-applicable"
    assert "no room" in found.summary


@pytest.mark.parametrize("tell", [True, False])
def test_probe_model_is_used_if_the_models_own_prompts_show_nothing(
    tell: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = builtin("f32", tmp_path)
    plan = plan_for(model, engine="reference", oracle="llama.cpp", suites=("decode",), n_tokens=32)
    if not tell:
        monkeypatch.setattr(decode, "in_turn", lambda *_: iter(()))
    said = "; ".join(verdict.summary for verdict in with_made_models(plan))
    assert "prompts in turn" in said
    assert (WHERE not in said) is tell


class KeepsHalf(Quiet, name="own prompts: the last half of a context"):
    """An engine that shows only tokens, and whose context has 512 cells."""

    levels = ("greedy",)
    kept = 256

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        return super().greedy([*prompt][-self.kept :], n)


class KeepsThreeQuarters(KeepsHalf, name="own prompts: the last 384 tokens"):
    kept = 384


@pytest.mark.parametrize("engine", [KeepsHalf, KeepsThreeQuarters])
def test_engine_that_keeps_part_of_a_context_is_found_on_q4_0(
    engine: type[KeepsHalf], tmp_path: Path
) -> None:
    """Long prompts on q4_0 itself prove nothing, because the model's noise makes every next token
    uncertain."""
    model = builtin("q4_0", tmp_path)
    more: dict[str, Any] = {"engine": engine.name, "oracle": "llama.cpp", "n_tokens": 32}
    found = with_made_models(plan_for(model, suites=("decode",), **more))
    assert [v.key for v in found if v.status == "diverged"] == ["decode/other prompt"]


class TextAlone(Quiet, name="text: reads all of a prompt"):
    levels = ("generate",)
    kept = 1 << 16  # number of tokens

    def generate(self, prompt: bytes, n: int) -> bytes:
        ids = self.tokenize([prompt])[0]
        if len(ids) > self.kept:
            ids = [*ids[:4], *ids[4 - self.kept :]]
        return b"".join(self.tokenizer.piece(t, special=False) for t in self.greedy(ids, n))


class WithoutTheMiddle(TextAlone, name="text: drops the middle of a long prompt"):
    kept = 256


@pytest.mark.parametrize(
    ("engine", "statuses"), [(TextAlone, {"agreed"}), (WithoutTheMiddle, {"diverged"})]
)
def test_text_without_the_middle_of_a_prompt_is_found_on_the_first_layer(
    engine: type[TextAlone], statuses: set[str], tmp_path: Path
) -> None:
    model = builtin("q4_0", tmp_path)
    plan = plan_for(model, engine=engine.name, oracle="llama.cpp", n_tokens=32)
    with closing(open_plan(plan, lambda _: None)) as opened:
        found = list(check_long_prompts(plan, opened.context))
    assert {verdict.status for verdict in found} >= statuses
    assert ("diverged" in statuses) is any(v.status == "diverged" for v in found)
    assert all(verdict.suite == "text" for verdict in found)


class EndsEarly(TextAlone, name="text: ends after two tokens"):
    def generate(self, prompt: bytes, n: int) -> bytes:
        return super().generate(prompt, min(n, 2))


def test_text_that_ends_early_on_the_first_layer_is_not_counted_as_missing(tmp_path: Path) -> None:
    plan = plan_for(builtin("q4_0", tmp_path), engine=EndsEarly.name, oracle="llama.cpp")
    with closing(open_plan(plan, lambda _: None)) as opened:
        found = list(check_long_prompts(plan, opened.context))
    assert found
    assert {verdict.status for verdict in found} <= {"agreed", "not-applicable"}
