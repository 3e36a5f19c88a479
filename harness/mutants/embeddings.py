"""Mistakes at the beginning of a graph: rows of the embedding table, their scale, positions, token
types."""

from typing import Any

import numpy as np

from lockstep.engine.model import Model
from lockstep.engine.ops.reference import I32
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.mutants.parts.mistakes import Mistake, Op, Read, as_weight


def of_positions(weight: Weight) -> bool:
    return weight.name.startswith("position")


class WrongEmbeddings(Mistake):
    group = "embeddings"
    site = "embd"
    layer = None


WrongEmbeddings.add_fault(
    "embedding-of-next-id",
    "each token gets the row after its own",
    "noise from the first token on",
    get_rows=lambda self, right, w, ids: right(w, np.minimum(ids + 1, w.shape[0] - 1)),
)
WrongEmbeddings.add_fault(
    "last-id-clamped",
    "the last id of the vocabulary is clamped to the id before it",
    "no effect except where the last token is read",
    get_rows=lambda self, right, w, ids: right(w, np.minimum(ids, w.shape[0] - 2)),
)
WrongEmbeddings.add_fault(
    "first-id-is-padding",
    "id 0 is treated as padding with a row of zeros",
    "no effect except where token 0 is read",
    get_rows=lambda self, right, w, ids: np.where(ids[:, None] == 0, np.float32(0), right(w, ids)),
)
WrongEmbeddings.add_fault(
    "ids-of-one-byte",
    "ids are stored in one byte",
    "byte tokens are read correctly, words are not",
    get_rows=lambda self, right, w, ids: right(w, ids & 0xFF),
)
WrongEmbeddings.add_fault(
    "embeddings-column-major",
    "the table of embeddings is read column by column",
    "noise from the first token on",
    get_rows=lambda self, right, w, ids: (
        w.values().reshape(w.shape[::-1]).T[ids].astype(np.float32)
    ),
)


def in_half(self: Mistake, right: Op, weight: Weight, ids: I32) -> F32:
    rows = right(weight, ids)
    return rows.astype(np.float16).astype(np.float32) if weight.format.name == "F32" else rows


WrongEmbeddings.add_fault(
    "embeddings-in-half",
    "rows of an F32 table are stored in half precision",
    "no effect that a reader sees",
    get_rows=in_half,
)


def drop_row(self: Mistake, right: Op, weight: Weight, ids: I32) -> F32:
    rows = right(weight, ids)
    return np.zeros_like(rows) if weight.format.weights > 1 else rows


WrongEmbeddings.add_fault(
    "embeddings-dropped",
    "a quantised table is dropped by its name, so its memory stays zero",
    "the same logits for every token",
    source="sglang #38363",
    shows_on="q8_0",
    get_rows=drop_row,
)
WrongEmbeddings.add_fault(
    "embeddings-scaled-for-llama",
    "rows are multiplied by the root of the width, which only Gemma does",
    "what layers add is nearly lost: the text repeats itself",
    get_rows=lambda self, right, w, ids: right(w, ids) * np.float32(8),
)
WrongEmbeddings.add_fault(
    "embedding-scale-missing",
    "Gemma's embeddings are not multiplied by the root of the width",
    "noise from the first token on",
    shows_on="arch:gemma3",
    site="inp_scaled",
    scale=lambda self, right, x, factor: x if factor > 1 else right(x, factor),
)
WrongEmbeddings.add_fault(
    "embedding-scale-by-width",
    "Gemma's embeddings are multiplied by the width, not by its root",
    "what layers add is nearly lost: the text repeats itself",
    shows_on="arch:gemma2",
    site="inp_scaled",
    scale=lambda self, right, x, factor: right(x, factor**2 if factor > 1 else factor),
)
WrongEmbeddings.add_fault(
    "learned-positions-from-two",
    "learned positions begin at two, as those of OPT do",
    "text drifts",
    shows_on="arch:gpt2",
    site="pos_embd",
    get_rows=lambda self, right, w, ids: right(w, ids + 2 * of_positions(w)),
)
WrongEmbeddings.add_fault(
    "learned-positions-missing",
    "learned positions are not added",
    "word salad: the order of tokens is unknown",
    shows_on="arch:gpt2",
    site="pos_embd",
    get_rows=lambda self, right, w, ids: right(w, ids) * np.float32(not of_positions(w)),
)
WrongEmbeddings.add_fault(
    "learned-positions-of-batch",
    "learned positions begin at 0 in each batch",
    "prompts are read correctly, but all generated tokens are at position 0",
    shows_on="arch:gpt2",
    site="pos_embd",
    get_rows=lambda self, right, w, ids: right(w, ids - ids.min() if of_positions(w) else ids),
)


class TokenTypes(WrongEmbeddings):
    """Wrong token types. `types` returns a changed table of token types."""

    shows_on = "arch:bert"
    site = "inp_embd"

    def taken(self, read: Read, name: str) -> Weight:
        weight = read(name)
        if name != "token_types.weight":
            return weight
        return as_weight(weight, self.types(weight.values()))

    def types(self, rows: F32) -> F32:
        raise NotImplementedError


TokenTypes.add_fault(
    "token-types-missing",
    "the embedding of the first token type is not added",
    "embeddings are off by the same vector everywhere",
    types=lambda self, rows: rows * np.float32(0),
)
TokenTypes.add_fault(
    "second-token-type",
    "all tokens are of the second type",
    "embeddings are like those of answers",
    types=lambda self, rows: rows[::-1],
)


class EmbeddingNormMissing(Mistake, name="mutant:embedding-norm-missing"):
    mistake = "the norm after BERT's embeddings is left out"
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


WrongEmbeddings.add_fault(
    "embeddings-of-sorted-ids",
    "rows are fetched for sorted ids, and not put back in order",
    "word salad: tokens of a prompt change their places",
    get_rows=lambda self, right, weight, ids: right(weight, np.sort(ids)),
)
