"""Slices with one layer contain only the first tokens of a large vocabulary and its special
tokens."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.blackbox.few_tokens import KEPT, cut, few_tokens_of
from lockstep.harness.blackbox.rewriting import rewrite
from lockstep.harness.blackbox.slices import slice_of
from lockstep.harness.records import Evaluation, Request
from lockstep.harness.shadow.models import make_variant, open_for_variants
from lockstep.harness.synth.any_arch import variant_named, with_vocabulary
from lockstep.harness.synth.llama import LlamaRecipe
from tests.black_boxes import asker_of, bisected, faults
from tests.models import with_metadata, written

LARGE, LAST = 5000, 4999


def large(folder: Path, arch: str) -> Path:
    path = folder / f"{arch}.gguf"
    if arch == "llama":
        recipe = LlamaRecipe(n_vocab=LARGE, n_layer=2, tied=True, quant="Q4_0")
        with_metadata(path, recipe, tokenizer__ggml__eos_token_id=("U32", LAST))
        return path
    with open_for_variants() as namer:
        make_variant(with_vocabulary(variant_named(arch), LARGE), path, session=namer)
    return path


def test_few_tokens_are_the_models_rows_with_renumbered_special_tokens(
    tmp_path: Path,
) -> None:
    path, out = large(tmp_path, "llama"), tmp_path / "slice.gguf"
    with GgufFile.open(path) as model:
        few = few_tokens_of(model)
        assert few is not None
        rewrite(model, cut(slice_of(model, 1, stored=True), few), out)
        rows = model.raw("token_embd.weight").reshape(LARGE, -1)
        with GgufFile.open(out) as made:
            tokens = made.metadata["tokenizer.ggml.tokens"].data
            assert len(tokens) == len(made.metadata["tokenizer.ggml.scores"].data) == KEPT + 1
            assert made.metadata["tokenizer.ggml.eos_token_id"].data == KEPT
            assert made.metadata["tokenizer.ggml.bos_token_id"].data == 1
            assert tokens[KEPT] == model.metadata["tokenizer.ggml.tokens"].data[LAST]
            ours = made.raw("token_embd.weight").reshape(KEPT + 1, -1)
            assert np.array_equal(ours, rows[[*range(KEPT), LAST]])


def test_rows_that_are_already_chosen_are_kept(tmp_path: Path) -> None:
    with GgufFile.open(large(tmp_path, "llama")) as model:
        same = np.zeros(3, np.int64)
        recipe = replace(slice_of(model, 1), rows={"blk.0.ffn_up.weight": same})
        rows = cut(recipe, few_tokens_of(model)).rows
        assert rows["blk.0.ffn_up.weight"] is same
        assert "token_embd.weight" in rows


def test_merges_use_only_remaining_tokens(tmp_path: Path) -> None:
    with GgufFile.open(large(tmp_path, "qwen2")) as model:
        few = few_tokens_of(model)
        assert few is not None
        tokens = set(few.keys["tokenizer.ggml.tokens"].data)
        merges = few.keys["tokenizer.ggml.merges"].data
        assert 0 < len(merges) < len(model.metadata["tokenizer.ggml.merges"].data)
        assert all(part in tokens for merge in merges for part in merge.split(" "))
        assert all(merge.replace(" ", "") in tokens for merge in merges)


def test_small_or_unknown_vocabulary_stays_whole(tmp_path: Path) -> None:
    unknown = tmp_path / "unknown.gguf"
    with_metadata(unknown, LlamaRecipe(n_vocab=LARGE), tokenizer__ggml__model=("STR", "t5"))
    for path in (written(tmp_path, n_vocab=400), unknown):
        with GgufFile.open(path) as model:
            recipe = slice_of(model, 0)
            assert cut(recipe, few_tokens_of(model)) is recipe


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_slices_with_few_tokens_run_and_name_the_wrong_layer(arch: str, tmp_path: Path) -> None:
    path = large(tmp_path, arch)
    found = bisected(path, tmp_path / "honest")
    assert {row.answer.status for row in found.rows} == {"agreed"}
    wrong = bisected(path, tmp_path / "wrong", engine="mutant:silu-without-gate")
    assert set(faults(wrong)) == {0, 1}
    with closing(asker_of(path, tmp_path / "asked")) as asker:
        recipe = asker.with_few_tokens(asker.file, slice_of(asker.file, 0))
        assert len(recipe.rows["token_embd.weight"]) < LARGE / 4


class KnowsItsVocabulary(Reference, name="test:knows-its-vocabulary"):
    """An honest engine whose code contains the size of its vocabulary."""

    def evaluate(self, request: Request) -> Evaluation:
        found = super().evaluate(request)
        if found.logits[0].shape[1] != LARGE:
            raise IndexError(LAST)
        return found


def test_engine_that_accepts_only_one_vocabulary_is_tested_with_it(tmp_path: Path) -> None:
    found = bisected(large(tmp_path, "llama"), tmp_path / "made", engine=KnowsItsVocabulary.name)
    assert {row.answer.status for row in found.rows} == {"agreed"}
    # layers are tested by their slices, and not in their places in the whole model
    assert [(row.layer, row.what) for row in found.rows[2:]] == [(0, ""), (1, "")]
