"""`bisect` finds the faults that `check` finds, or reports that no op is wrong."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lockstep.engine.registry import import_members
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.bisect.bisection import NO_OP, Bisection, bisect
from lockstep.harness.cli.bisection import bisection_lines
from tests.contexts import context_of
from tests.harness.check.test_check import plan_for
from tests.models import builtin

import_members("lockstep.harness.mutants")


class ReplacesBytes(Reference, name="bisect: replaces bytes"):
    """An engine that replaces invalid UTF-8 with U+FFFD before it tokenizes."""

    def tokenize(self, texts: Sequence[bytes], **flags: bool) -> list[list[int]]:
        whole = [text.decode("utf-8", "replace").encode() for text in texts]
        return super().tokenize(whole, **flags)


def bisected(
    name: str, folder: Path, model: Path | None = None, **options: Any
) -> tuple[Bisection, str]:
    plan = plan_for(model or builtin("f32", folder), engine=name, n_steps=8, **options)
    with context_of(plan) as context:
        found = bisect(context)
    return found, "\n".join(bisection_lines(plan, found))


def test_fault_after_64_cells_is_found_in_a_longer_run_and_confirmed(tmp_path: Path) -> None:
    found, words = bisected("mutant:cache-cells-beyond-64", tmp_path)
    assert found.first is not None
    assert (found.exit_code, str(found.first.site)) == (1, "kq_soft_max-0")
    assert "in batches of" in found.asked
    assert found.asked in words
    assert found.patched is not None
    assert found.patched.confirms


def test_list_of_layers_shows_an_op_that_is_wrong_after_the_prompt(
    tmp_path: Path,
) -> None:
    """An earlier version listed every layer as right, although it named a wrong op below the
    list."""
    found, words = bisected("mutant:cache-batch-sees-itself-alone", tmp_path)
    assert found.first is not None
    assert found.first.site.step == 1
    listed = {layer.layer: layer.guilty for layer in found.layers}
    assert listed[0] == (f"{found.first.site.name} (step 1)",)
    assert f"{found.first.site.name} (step 1)" in words.split("first divergence")[0]
    # errors are those of the wrong step; in the prompt, layers have only honest engines' errors
    errors = [layer.error for layer in found.layers if layer.layer is not None]
    assert min(errors) > 1e-3
    before = found.layers[0]  # a right op passes on only the error of honest engines
    assert (before.layer, before.guilty, before.error < 1e-6) == (None, (), True)


def test_list_names_no_step_for_an_op_wrong_in_the_prompt(tmp_path: Path) -> None:
    found, _ = bisected("mutant:rope-half-split", tmp_path)
    assert all("step" not in name for layer in found.layers for name in layer.guilty)
    assert found.layers[1].guilty


def test_wrong_choice_of_tokens_blames_no_op(tmp_path: Path) -> None:
    found, words = bisected("mutant:greedy-second-best", tmp_path)
    assert not found.culprits
    assert found.exit_code == NO_OP
    assert {verdict.suite for verdict in found.others} == {"decode"}
    assert "no op is wrong on its own inputs" in words


def test_bisect_reports_a_wrong_tokenizer(tmp_path: Path) -> None:
    found, words = bisected(ReplacesBytes.name, tmp_path)
    assert found.exit_code == NO_OP
    assert {verdict.suite for verdict in found.others} == {"tokens"}
    assert "tokens: encode" in words


def test_text_that_is_not_unicode_is_named_with_its_flags(tmp_path: Path) -> None:
    """An earlier message did not name the flags, although it expected a BOS."""
    found, words = bisected("mutant:bos-missing", tmp_path)
    assert found.exit_code == NO_OP
    assert "encode_beyond_unicode (add_special): 1 of 1 inputs differ" in words
    assert "encode (no flags)" not in words


def test_bisect_finds_a_prompt_that_is_mistaken_for_the_previous_one(tmp_path: Path) -> None:
    found, _ = bisected("mutant:state-logits-of-last-call", tmp_path)
    assert found.exit_code in (1, NO_OP)


@pytest.mark.parametrize("name", ["mutant:race-head-lost", "mutant:race-sum-of-parts"])
def test_patch_confirms_nothing_for_an_engine_that_is_not_deterministic(
    name: str, tmp_path: Path
) -> None:
    found, words = bisected(name, tmp_path)
    assert found.exit_code in (1, NO_OP)
    assert found.patched is None
    assert found.unsteady is not None
    assert "is not deterministic" in words
    assert found.culprits or "look at sums in thread order" in words


def test_bisect_finds_nothing_in_an_honest_engine(tmp_path: Path) -> None:
    found, words = bisected("honest:silu-tanh", tmp_path)
    assert (found.exit_code, found.others, found.asked) == (0, (), "")
    assert "nothing to find" in words
