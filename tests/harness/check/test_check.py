"""A check: refusals at its start, the suites that run, and the exit code for their verdicts."""

import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tests.fake_engines  # noqa: F401  registers them
from lockstep.engine.errors import Unsupported
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.check.check import (
    BadInput,
    Opened,
    Plan,
    open_plan,
    preflight,
    run_suites,
    settings_for,
    suites_named,
)
from lockstep.harness.context.runner import LocalSession
from lockstep.harness.context.suite import Context, Suite
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.judging.lanes import lanes_of
from lockstep.harness.records import (
    DEFAULT,
    EXACT,
    Answered,
    Crashed,
    Outcome,
    Rejected,
    Status,
    TimedOut,
    Unanswerable,
    Verdict,
)
from lockstep.harness.suites.decode import Decode, choices
from lockstep.harness.synth.gguf_writer import gguf_bytes
from lockstep.harness.synth.llama import LlamaRecipe, metadata
from tests.models import builtin, with_changed_weight, with_metadata, written

FAKE_PROGRAM = Path(__file__).parents[2] / "fake_program.py"
SUITES = ("metadata", "tokens", "dequant", "logits", "decode", "trace", "products")
NOT_OF_LLAMA = "embeddings"  # does not apply, which is reported only if the user names it


def plan_for(path: Path, **changes: Any) -> Plan:
    """Return a plan that compares our own engine with itself, which needs no llama.cpp."""
    known: dict[str, Any] = {"case": path.name, "model": path, "subject_model": path}
    known |= {"oracle": "reference", "settings": EXACT, "n_tokens": 9, "n_steps": 4}
    known |= {"command": str(path)}
    return Plan(**(known | changes))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return builtin("f32", tmp_path)


@pytest.fixture
def pair(model: Path) -> Iterator[Opened]:
    opened = open_plan(plan_for(model), lambda _: None)
    yield opened
    opened.close()


def verdicts_of(plan: Plan) -> list[Verdict]:
    opened = open_plan(plan, lambda _: None)
    try:
        return list(run_suites(opened.context, plan.suites))
    finally:
        opened.close()


def verdict(status: Status) -> Verdict:
    return Verdict(suite="s", case="c", status=status, summary="x")


# --- exit codes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (["agreed"], 0),
        (["agreed", "excused"], 0),
        (["agreed", "diverged"], 1),
        (["agreed", "diverged", "crashed", "not-compared"], 1),
        (["agreed", "crashed"], 3),
        (["agreed", "timed-out"], 3),
        (["agreed", "not-compared"], 3),
        (["excused"], 3),
        ([], 3),
    ],
)
def test_exit_code_is_0_only_if_something_agreed(statuses: list[Status], code: int) -> None:
    assert exit_code([verdict(status) for status in statuses]) == code
    assert exit_code([verdict(status) for status in reversed(statuses)]) == code


def test_our_engine_agrees_with_itself_in_every_suite(model: Path) -> None:
    found = verdicts_of(plan_for(model))
    others = [v for v in found if v.suite != "shadow"]
    assert {v.status for v in others} == {"agreed"}
    assert {v.suite for v in others} == set(SUITES)
    assert exit_code(found) == 0


def test_oracle_without_a_graph_is_reported(model: Path) -> None:
    found = verdicts_of(plan_for(model, suites=("shadow",)))
    assert [(v.suite, v.status) for v in found] == [("shadow", "excused")]
    assert "reference shows no graph" in found[0].summary
    assert exit_code(found) == 3


def test_verdict_on_the_oracle_alone_names_only_the_oracle(model: Path) -> None:
    found = verdicts_of(plan_for(model, suites=("metadata", "shadow"), engine="fast"))
    assert {(v.suite, v.about) for v in found} == {("metadata", "both"), ("shadow", "reference")}


@pytest.mark.parametrize("settings", [EXACT, DEFAULT], ids=lambda s: s.name)
@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_runs_alone(suite: str, settings: Any, model: Path) -> None:
    found = verdicts_of(plan_for(model, suites=(suite,), settings=settings))
    assert {v.suite for v in found} == {suite}
    assert exit_code(found) == 0


def test_one_changed_weight_is_a_divergence_with_a_repeating_command(
    model: Path, tmp_path: Path
) -> None:
    other = with_changed_weight(model, tmp_path / "other.gguf", "blk.1.ffn_down.weight", 5, 9, 0.5)
    found = verdicts_of(plan_for(model, subject_model=other))
    assert exit_code(found) == 1
    wrong = [v for v in found if v.status == "diverged"]
    assert {v.suite for v in wrong} == {"dequant", "logits", "decode", "trace", "products"}
    for each in wrong:
        assert each.key.startswith(f"{each.suite}/")
        assert each.repro == f"lockstep check {model} --suite {each.suite}"
    (weights,) = (v.detail for v in wrong if v.suite == "dequant")
    assert (weights["tensor"], weights["row"], weights["column"]) == (
        *("blk.1.ffn_down.weight", 5, 9),
    )
    sites = {(v.detail["site"], v.detail["layer"]) for v in wrong if v.suite == "trace"}
    assert sites == {("ffn_out", 1)}


def test_file_of_another_shape_is_not_compared_weight_by_weight(
    model: Path, tmp_path: Path
) -> None:
    other = written(tmp_path, "wide.gguf", seed=1, n_ff=128)
    found = verdicts_of(plan_for(model, subject_model=other, suites=("dequant",)))
    left_out = [v for v in found if v.status == "not-compared"]
    assert {v.key for v in left_out} == {"dequant/shape"}  # one cause for all tensors
    assert len({v.detail["tensor"] for v in left_out}) == len(left_out) > 1
    assert exit_code(found) == 3


# --- generation -----------------------------------------------------------------------------


def test_decode_continues_from_the_given_prompt(model: Path) -> None:
    opened = open_plan(plan_for(model, prompt=b"ab"), lambda _: None)
    try:
        (expected,) = opened.context.oracle.ask("tokenize", [b"ab"]).value  # type: ignore[union-attr]
        assert Decode().prompt(opened.context) == expected
    finally:
        opened.close()


def test_long_prompt_fits_into_the_cache(model: Path) -> None:
    assert settings_for(plan_for(model, prompt=b"x" * 1000)).n_ctx == 1024


def test_a_prompt_for_a_model_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, vocabulary=False)
    with pytest.raises(BadInput, match="no vocabulary, so --prompt cannot be tokenized"):
        preflight(plan_for(path, prompt=b"x"))


def test_equal_choices_along_the_other_engines_text_are_counted() -> None:
    logits = np.eye(4, dtype=np.float32)  # the most likely tokens are 0, 1, 2, 3
    assert choices([0, 1, 3, 3], logits) == {"same_choices": 3, "other_choices": [(2, 3, 2)]}


# --- unanswered questions -------------------------------------------------------------------


class Failing(LocalSession):
    """An engine with one failing question."""

    def __init__(self, plan: Plan, question: str, outcome: Outcome) -> None:
        super().__init__(Reference, plan.model, settings_for(plan))
        self.question, self.outcome = question, outcome

    def _ask(self, question: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome:
        return self.outcome if question == self.question else super()._ask(question, args, kwargs)


@pytest.mark.parametrize("role", ["oracle", "subject"])
@pytest.mark.parametrize(
    ("outcome", "status", "code"),
    [
        (Crashed(message="was killed by SIGSEGV", log=("last words",)), "crashed", 3),
        (TimedOut(seconds=5.0, log=("last words",)), "timed-out", 3),
        (Unanswerable(message="does not tokenize"), "not-compared", 3),
        (Rejected(message="InvalidModel: no"), "diverged", 1),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_question_without_an_answer_is_a_verdict_and_other_suites_run(
    role: str, outcome: Outcome, status: Status, code: int, pair: Opened, model: Path
) -> None:
    with Failing(plan_for(model), "tokenize", outcome) as session:
        context: Context = replace(pair.context, **{role: session})  # type: ignore[arg-type]
        found = list(run_suites(context, ("metadata", "tokens", "dequant", "logits", "trace")))
    assert {(v.suite, v.status) for v in found if v.status != "agreed"} == {("tokens", status)}
    assert {v.suite for v in found} == {"metadata", "tokens", "dequant", "logits", "trace"}
    assert exit_code(found) == code
    wrong = next(v for v in found if v.status == status)
    assert "reference" in wrong.summary
    if status in ("crashed", "timed-out"):
        assert wrong.detail["log"] == ["last words"]


class Outgrown(LocalSession):
    """An engine that accepts every file but computes wrong results."""

    def _ask(self, question: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome:
        outcome = super()._ask(question, args, kwargs)
        if question == "tokenize" and isinstance(outcome, Answered):
            return replace(outcome, value=[[*ids, 7] for ids in outcome.value])
        return outcome


def test_different_ids_are_a_divergence(pair: Opened, model: Path) -> None:
    plan = plan_for(model)
    with Outgrown(Reference, model, settings_for(plan)) as session:
        found = list(run_suites(replace(pair.context, subject=session), ("tokens",)))
    ways = [(v.detail["way"], v.status) for v in found if v.status != "agreed"]
    # four pairs of flags, and one separate text
    assert ways == [("encode", "diverged")] * 4 + [("encode_beyond_unicode", "diverged")]


# --- suites ---------------------------------------------------------------------------------


def test_all_suites_run_in_order_by_default() -> None:
    every = ["metadata", "tokens", "dequant", "logits", "long-context", "logprobs", "embeddings"]
    every += ["states", "guidance", "decode", "text", "samplers", "black-box", "acid", "trace"]
    every += ["products", "shadow"]
    assert [suite.name for suite in suites_named(())] == every


def test_suites_run_once_in_fixed_order() -> None:
    named = suites_named(("trace", "metadata", "trace"))
    assert [suite.name for suite in named] == ["metadata", "trace"]


def test_unknown_suite_is_refused_with_the_known_suites() -> None:
    with pytest.raises(Unsupported, match="'speed'") as refusal:
        suites_named(("speed",))
    assert all(name in str(refusal.value) for name in Suite.family)


# --- refusals at the start ------------------------------------------------------------------


def test_model_with_a_vocabulary_is_recognised(model: Path, tmp_path: Path) -> None:
    assert preflight(plan_for(model)).has_vocabulary
    silent = written(tmp_path, "silent.gguf", vocabulary=False)
    assert not preflight(plan_for(silent)).has_vocabulary


def test_a_model_without_a_vocabulary_is_checked_on_seeded_ids(tmp_path: Path) -> None:
    silent = written(tmp_path, "silent.gguf", vocabulary=False)
    found = verdicts_of(plan_for(silent))
    (tokens,) = (v for v in found if v.suite == "tokens")
    assert (tokens.status, tokens.summary) == ("not-applicable", "the file has no vocabulary")
    assert exit_code(found) == 0
    assert {v.suite for v in found if v.status == "agreed"} == {*SUITES} - {"tokens"}


def test_run_does_not_conform_if_no_suite_applies(tmp_path: Path) -> None:
    silent = written(tmp_path, "silent.gguf", vocabulary=False)
    assert exit_code(verdicts_of(plan_for(silent, suites=("tokens",)))) == 3


def test_file_without_tensors_is_compared_in_its_metadata(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.gguf"
    path.write_bytes(gguf_bytes(metadata(LlamaRecipe()), []))
    found = verdicts_of(plan_for(path))
    assert {v.suite for v in found if v.status == "agreed"} == {"metadata", "tokens"}
    left_out = {v.suite: v.summary for v in found if v.status == "not-applicable"}
    assert set(left_out) == {*SUITES, "shadow"} - {"metadata", "tokens"}
    assert set(left_out.values()) == {"the file holds no tensors"}
    assert exit_code(found) == 0


def test_adapter_is_not_a_model(tmp_path: Path) -> None:
    path = with_metadata(tmp_path / "lora.gguf", LlamaRecipe(), general__type=("STR", "adapter"))
    assert preflight(plan_for(path)).no_run == "the file is of type 'adapter', not a model"


def test_file_of_the_subject_is_checked_too(model: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"gone\.gguf: no such file"):
        preflight(plan_for(model, subject_model=tmp_path / "gone.gguf"))


@pytest.mark.parametrize("role", ["engine", "oracle"])
def test_unknown_engine_is_refused_with_the_known_engines(role: str, model: Path) -> None:
    with pytest.raises(BadInput, match=r"no engine named 'rust'.*reference.*llama\.cpp.*\./rust"):
        open_plan(plan_for(model, **{role: "rust"}), lambda _: None)


def test_refusal_of_a_broken_model_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.gguf"
    path.write_bytes(b"")
    with pytest.raises(BadInput, match=r"empty\.gguf: "):
        preflight(plan_for(path))


# --- settings -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_tokens", "n_steps", "n_ctx", "n_ubatch"),
    [
        (32, 64, 512, 512),
        (510, 1, 512, 512),
        (511, 1, 768, 512),
        (600, 1, 768, 600),
        (8, 448, 512, 512),
        (8, 449, 768, 512),
        (4096, 1, 4352, 4096),
    ],
)
def test_cache_is_large_enough_for_decode(
    n_tokens: int, n_steps: int, n_ctx: int, n_ubatch: int, model: Path
) -> None:
    settings = settings_for(plan_for(model, n_tokens=n_tokens, n_steps=n_steps))
    assert (settings.n_ctx, settings.n_ubatch) == (n_ctx, n_ubatch)


@pytest.mark.parametrize(
    ("build", "lanes"),
    [
        ("CPU : SSE3 = 1 | AVX = 1 | AVX2 = 1 | AVX512 = 1 | OPENMP = 1", 16),
        ("CPU : SSE3 = 1 | SSSE3 = 1 | AVX = 1 | AVX2 = 1 | F16C = 1", 8),
        ("CPU : SSE3 = 1 | AVX = 1", 8),
        ("CPU : SSE3 = 1 | AVX2 = 0", 4),
        ("CPU : NEON = 1 | ARM_FMA = 1", 4),
        ("AVX512 = 1 | OPENMP = 1", 16),
        ("", 1),
    ],
)
def test_number_of_lanes_comes_from_the_oracles_description(build: str, lanes: int) -> None:
    assert lanes_of(build) == lanes


def test_seed_decides_the_tokens(model: Path) -> None:
    def tokens(seed: int) -> list[int]:
        opened = open_plan(plan_for(model, seed=seed), lambda _: None)
        try:
            return opened.context.tokens
        finally:
            opened.close()

    assert tokens(1) == tokens(1)
    assert tokens(1) != tokens(2)
    assert max(tokens(1)) < 384
    assert len(tokens(1)) == 9 + 2


def test_both_engines_get_the_activation_roundings_of_the_oracles_build(tmp_path: Path) -> None:
    plan = plan_for(builtin("f32", tmp_path), engine="reference", oracle="fake-generic")
    opened = open_plan(plan, lambda _: None)
    try:
        settings = opened.context.settings
        assert settings.generic == opened.engines[1].settings.generic == ("Q8_0", "Q8_1")
    finally:
        opened.close()


def test_engine_that_cannot_start_is_one_line_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        open_plan(plan_for(builtin("f32", tmp_path), oracle="fake-absent"), lambda _: None)
    assert "\n" not in str(refused.value)
    assert "fake-absent cannot be started" in str(refused.value)


def test_llama_cpp_is_not_blamed_for_an_impossible_cache(tmp_path: Path) -> None:
    command = shlex.join([sys.executable, str(FAKE_PROGRAM), "stores values as llama.cpp cannot"])
    with pytest.raises(BadInput, match=r"a Q8_0 cache of values without flash attention"):
        open_plan(plan_for(builtin("f32", tmp_path), engine=command), lambda _: None)
