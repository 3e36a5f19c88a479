"""Ids that are never the most likely on a user's model, so that an engine might never choose
them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lockstep.engine.batch import Batch
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.blackbox import probes
from lockstep.harness.blackbox.own_token import WHERE
from lockstep.harness.records import Request, Verdict
from tests.black_boxes import bisected, one_layer_of, with_made_models
from tests.harness.check.test_check import plan_for
from tests.models import written
from tests.quiet_engines import Quiet, made

# so many tokens that only few of them are the most likely after some hundred prefixes
VOCABULARY = 2000


def without(first: int, last: int) -> Any:
    """Return a greedy search that never chooses the first ids or the last ids. `first` and `last`
    are the numbers of these ids."""

    def greedy(self: Any, prompt: Sequence[int], n: int) -> list[int]:
        ids: list[int] = []
        while len(ids) < n:
            request = Request(batches=(Batch.of([*prompt, *ids]),))
            row = self.evaluate(request).logits[0][-1]
            ids.append(first + int(row[first : len(row) - last].argmax()))
        return ids

    return greedy


def decoded(model: Path, engine: str, **changes: Any) -> list[Verdict]:
    plan = plan_for(model, engine=engine, suites=("decode",), n_tokens=32, **changes)
    return with_made_models(plan)


def of_own_tokens(found: list[Verdict]) -> list[Verdict]:
    return [verdict for verdict in found if WHERE in verdict.summary]


@pytest.mark.parametrize("levels", [("greedy",), ("logits", "greedy")])
@pytest.mark.parametrize(("first", "last", "id"), [(0, 1, VOCABULARY - 1), (1, 0, 0)])
def test_greedy_search_that_loses_a_never_likeliest_id_is_found(
    first: int, last: int, id: int, levels: tuple[str, ...], tmp_path: Path
) -> None:
    """No tested prefix ends with this id, so all other answers agree."""
    model = written(tmp_path, n_layer=1, n_vocab=VOCABULARY)
    greedy = without(first, last)
    name = made(f"own token: {first}, {last}, {levels}", Quiet, levels=levels, greedy=greedy)
    *fine, wrong = decoded(model, name)
    assert "diverged" not in {verdict.status for verdict in fine}
    assert (wrong.status, wrong.key) == ("diverged", "decode/own token")
    assert (wrong.detail["expected"], wrong.detail["at_fault"]) == (id, "subject")
    assert bisected(model, tmp_path / "made", engine=name).exit_code == 1


def by_text(self: Any, prompt: Sequence[int], n: int) -> list[int]:
    """Choose the largest logit in the order in which JavaScript sorts numbers by default, which is
    the order of texts."""
    ids: list[int] = []
    while len(ids) < n:
        row = self.evaluate(Request(batches=(Batch.of([*prompt, *ids]),))).logits[0][-1]
        ids.append(max(range(len(row)), key=lambda i: f"{row[i]:.9f}"))
    return ids


def test_greedy_search_on_rounded_logits_is_found_at_two_digits(
    tmp_path: Path,
) -> None:
    """While all logits are below ten, the largest logit is also the last in the order of texts."""
    model = written(tmp_path, n_layer=1, n_vocab=VOCABULARY)
    name = made("own token: by text", Quiet, levels=("greedy",), greedy=by_text)
    *fine, wrong = decoded(model, name)
    assert "diverged" not in {verdict.status for verdict in fine}
    assert (wrong.status, wrong.key) == ("diverged", "decode/own token")


def test_greedy_search_with_16_bit_ids_is_found_on_a_larger_vocabulary(
    tmp_path: Path,
) -> None:
    """The suite tests only the first thousand tokens of a smaller vocabulary."""
    model = written(tmp_path, n_layer=1, n_vocab=32770)
    greedy = without(0, 2)
    name = made("own token: of 16 bits", Quiet, levels=("greedy",), greedy=greedy)
    wrong = of_own_tokens(decoded(model, name))
    assert [(verdict.status, verdict.detail["expected"]) for verdict in wrong] == [
        ("diverged", 32768)
    ]


def test_vocabulary_reduced_for_its_size_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "WHOLE_TABLES", 1 << 17)
    model = written(tmp_path, n_layer=1, n_embd=32, n_ff=32, n_vocab=5000)
    (found,) = of_own_tokens(decoded(model, Reference.name))
    assert found.status == "agreed"
    assert "1023 (this model has 1024 of 5000 tokens)" in found.summary


@pytest.mark.parametrize("arch", ["llama", "gemma2", "gpt2", "rwkv6", "mamba", "deepseek2"])
def test_a_right_engine_chooses_the_first_and_the_last_id(arch: str, tmp_path: Path) -> None:
    """gemma2 caps its logits and has tied embeddings; gpt2 has learned positions."""
    model = one_layer_of(arch, tmp_path)
    found = of_own_tokens(decoded(model, "replay", oracle="llama.cpp"))
    assert [verdict.status for verdict in found] == ["agreed"]
    assert " the engine chooses 0, " in found[0].summary


def test_token_that_was_never_the_likeliest_is_not_reported_as_equal(tmp_path: Path) -> None:
    model = written(tmp_path, n_layer=1, n_vocab=VOCABULARY)
    said = "; ".join(verdict.summary for verdict in decoded(model, Reference.name))
    assert "as nowhere a clear choice" in said or "a clear choice after any" in said
