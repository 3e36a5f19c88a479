"""What a graph begins with, wrong: rows of the table, their scale, positions, types."""

from typing import Any

import numpy as np

from lockstep.engine.model import Model
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.reference import I32
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.mutants.base import Mutant
from lockstep.harness.mutants.parts.changed import as_weight, change_weights, ops_with
from lockstep.harness.mutants.parts.mistakes import Mistake

ROWS = Mirror.get_rows


def of_positions(weight: Weight) -> bool:
    return weight.name.startswith("position")


class NextRow(Mutant, name="mutant:embedding-of-next-id"):
    ops = ops_with(get_rows=lambda ops, w, ids: ROWS(ops, w, np.minimum(ids + 1, w.shape[0] - 1)))
    mistake = "each token gets the row behind its own"
    group = "embeddings"
    effect = "noise from the first token on"
    site = "embd"
    layer = None


class LastIdClamped(Mutant, name="mutant:last-id-clamped"):
    ops = ops_with(get_rows=lambda ops, w, ids: ROWS(ops, w, np.minimum(ids, w.shape[0] - 2)))
    mistake = "the last id of the vocabulary is clamped to the one before"
    group = "embeddings"
    effect = "nothing, but where the last token is read"
    site = "embd"
    layer = None


class FirstIdIsPadding(Mutant, name="mutant:first-id-is-padding"):
    ops = ops_with(
        get_rows=lambda ops, w, ids: np.where(ids[:, None] == 0, np.float32(0), ROWS(ops, w, ids))
    )
    mistake = "id 0 is taken for padding, whose row is zero"
    group = "embeddings"
    effect = "nothing, but where token 0 is read"
    site = "embd"
    layer = None


class IdsOfOneByte(Mutant, name="mutant:ids-of-one-byte"):
    ops = ops_with(get_rows=lambda ops, w, ids: ROWS(ops, w, ids & 0xFF))
    mistake = "ids are kept in one byte"
    group = "embeddings"
    effect = "bytes are read rightly, words are not"
    site = "embd"
    layer = None


class TableColumnMajor(Mutant, name="mutant:embeddings-column-major"):
    ops = ops_with(
        get_rows=lambda ops, w, ids: w.values().reshape(w.shape[::-1]).T[ids].astype(np.float32)
    )
    mistake = "the table of embeddings is read column by column"
    group = "embeddings"
    effect = "noise from the first token on"
    site = "embd"
    layer = None


def in_half(ops: Mirror, weight: Weight, ids: I32) -> F32:
    rows = ROWS(ops, weight, ids)
    return rows.astype(np.float16).astype(np.float32) if weight.format.name == "F32" else rows


class EmbeddingsInHalf(Mutant, name="mutant:embeddings-in-half"):
    ops = ops_with(get_rows=in_half)
    mistake = "rows of an F32 table are kept in half precision"
    group = "embeddings"
    effect = "nothing that a reader sees"
    site = "embd"
    layer = None


def dropped(ops: Mirror, weight: Weight, ids: I32) -> F32:
    rows = ROWS(ops, weight, ids)
    return np.zeros_like(rows) if weight.format.weights > 1 else rows


class EmbeddingsDropped(Mutant, name="mutant:embeddings-dropped"):
    ops = ops_with(get_rows=dropped)
    mistake = "a quantised table is dropped by its name, and its memory stays as it was: zeros"
    group = "embeddings"
    effect = "the same logits for every token"
    source = "sglang #38363"
    shows_on = "q8_0"
    site = "embd"
    layer = None


class ScaledForLlama(Mutant, name="mutant:embeddings-scaled-for-llama"):
    ops = ops_with(get_rows=lambda ops, *args: ROWS(ops, *args) * np.float32(8))
    mistake = "rows are multiplied by the root of the width, as Gemma alone does"
    group = "embeddings"
    effect = "what layers add hardly counts: the text repeats itself"
    site = "embd"
    layer = None


class ScaleMissing(Mutant, name="mutant:embedding-scale-missing"):
    ops = ops_with(scale=lambda ops, x, factor: x if factor > 1 else Mirror.scale(ops, x, factor))
    mistake = "Gemma's embeddings are not multiplied by the root of the width"
    group = "embeddings"
    effect = "noise from the first token on"
    shows_on = "arch:gemma3"
    site = "inp_scaled"
    layer = None


class ScaleByWidth(Mutant, name="mutant:embedding-scale-by-width"):
    ops = ops_with(
        scale=lambda ops, x, factor: Mirror.scale(ops, x, factor**2 if factor > 1 else factor)
    )
    mistake = "Gemma's embeddings are multiplied by the width, not by its root"
    group = "embeddings"
    effect = "what layers add hardly counts: the text repeats itself"
    shows_on = "arch:gemma2"
    site = "inp_scaled"
    layer = None


class PositionsFromTwo(Mutant, name="mutant:learned-positions-from-two"):
    ops = ops_with(get_rows=lambda ops, w, ids: ROWS(ops, w, ids + 2 * of_positions(w)))
    mistake = "learned positions begin at two, as those of OPT do"
    group = "embeddings"
    effect = "text drifts"
    shows_on = "arch:gpt2"
    site = "pos_embd"
    layer = None


class PositionsMissing(Mutant, name="mutant:learned-positions-missing"):
    ops = ops_with(get_rows=lambda ops, w, ids: ROWS(ops, w, ids) * np.float32(not of_positions(w)))
    mistake = "learned positions are not added"
    group = "embeddings"
    effect = "word salad: the order of tokens is unknown"
    shows_on = "arch:gpt2"
    site = "pos_embd"
    layer = None


class PositionsOfBatch(Mutant, name="mutant:learned-positions-of-batch"):
    ops = ops_with(
        get_rows=lambda ops, w, ids: ROWS(ops, w, ids - ids.min() if of_positions(w) else ids)
    )
    mistake = "learned positions are counted anew in each batch"
    group = "embeddings"
    effect = "prompts are read rightly, and what is generated is all at position 0"
    shows_on = "arch:gpt2"
    site = "pos_embd"
    layer = None


class TokenTypes(Mistake):
    group = "embeddings"
    shows_on = "arch:bert"
    site = "inp_embd"
    layer = None

    def change(self, model: Model) -> None:
        def changed(read: Any, name: str) -> Weight:
            weight: Weight = read(name)
            if name != "token_types.weight":
                return weight
            return as_weight(weight, self.types(weight.values()))

        change_weights(model, changed)

    @staticmethod
    def types(rows: F32) -> F32:
        raise NotImplementedError


class TypesMissing(TokenTypes, name="mutant:token-types-missing"):
    mistake = "the embedding of the first token type is not added"
    effect = "embeddings are off by the same vector everywhere"

    @staticmethod
    def types(rows: F32) -> F32:
        return rows * np.float32(0)


class SecondType(TokenTypes, name="mutant:second-token-type"):
    mistake = "all tokens are of the second type"
    effect = "embeddings are as those of answers"

    @staticmethod
    def types(rows: F32) -> F32:
        return rows[::-1]


class EmbeddingNormMissing(Mistake, name="mutant:embedding-norm-missing"):
    mistake = "the norm behind BERT's embeddings is left out"
    group = "embeddings"
    effect = "embeddings far off"
    shows_on = "arch:bert"
    site = "inp_norm"

    def change(self, model: Model) -> None:
        right, calls = model.ops.layer_norm, [0]
        per_run = 1 + 2 * model.graph.hparams.n_layer

        def layer_norm(x: F32, *args: Any) -> F32:
            calls[0] += 1
            return x if calls[0] % per_run == 1 else right(x, *args)

        model.ops.layer_norm = layer_norm  # type: ignore[assignment, method-assign]


class RowsOfBatchReversed(Mutant, name="mutant:embeddings-of-sorted-ids"):
    mistake = "rows are fetched for sorted ids, and not put back in order"
    group = "embeddings"
    effect = "word salad: tokens of a prompt change their places"
    site = "embd"
    layer = None

    class ops(Mirror):
        def get_rows(self, weight: Weight, ids: I32) -> F32:
            return super().get_rows(weight, np.sort(ids))
