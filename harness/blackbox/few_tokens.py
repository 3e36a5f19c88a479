"""A model with only the first tokens of its vocabulary. No layer depends on the other tokens.

Most bytes of a one-layer slice are embeddings: 113 of 127 MB for SmolLM2. Both engines would read
them for each question. The special tokens are kept too, after the first tokens.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.gguf.file import GgufFile, Value
from lockstep.harness.blackbox.parts import EMBEDDING, OUTPUT
from lockstep.harness.blackbox.rewriting import Recipe
from lockstep.harness.blackbox.slices import architecture

KEPT = 1024
# tensors with a row for each token
OF_TOKENS = (EMBEDDING, OUTPUT, "output.bias", "per_layer_token_embd.weight")
VOCABULARY = "tokenizer.ggml."
MODEL, TOKENS, MERGES = f"{VOCABULARY}model", f"{VOCABULARY}tokens", f"{VOCABULARY}merges"
# in these vocabularies, the remaining keys follow from the kept tokens
TOKENIZERS = ("llama", "gpt2")
SPECIAL = ("_token_id", "_token_ids")


@dataclass(frozen=True, kw_only=True)
class FewTokens:
    """A smaller vocabulary. ids: the kept tokens; keys: the metadata of the smaller vocabulary."""

    ids: NDArray[np.int64]
    keys: Mapping[str, Value]


def few_tokens_of(file: GgufFile) -> FewTokens | None:
    """Return the tokens to keep; None if the vocabulary is small or cannot be cut safely."""
    if not can_be_cut(file):
        return None
    ids = kept_ids(file)
    return FewTokens(ids=ids, keys=keys_of_few(file, ids))


def cut(recipe: Recipe, few: FewTokens | None) -> Recipe:
    if few is None:
        return recipe
    rows = {new: few.ids for new, old in recipe.names.items() if old in OF_TOKENS}
    return replace(recipe, rows={**recipe.rows, **rows}, keys={**recipe.keys, **few.keys})


def can_be_cut(file: GgufFile) -> bool:
    embedding, model = file.tensors.get(EMBEDDING), file.metadata.get(MODEL)
    if embedding is None or len(embedding.ne) != 2 or embedding.ne[1] <= 4 * KEPT:
        return False
    if model is None or model.data not in TOKENIZERS or TOKENS not in file.metadata:
        return False
    n = embedding.ne[1]
    others = (t for t in file.tensors.values() if not t.name.startswith("blk."))
    known = all(t.name in OF_TOKENS or n not in t.ne for t in others)
    return known and len(file.metadata[TOKENS].data) == n


def kept_ids(file: GgufFile) -> NDArray[np.int64]:
    n = file.tensors[EMBEDDING].ne[1]
    special = {int(i) for _, value in special_keys(file) for i in np.atleast_1d(value.data)}
    return np.array([*range(KEPT), *sorted(i for i in special if KEPT <= i < n)], np.int64)


def special_keys(file: GgufFile) -> Iterator[tuple[str, Value]]:
    for key in file.metadata:
        if key.startswith(VOCABULARY) and key.endswith(SPECIAL):
            yield key, file.metadata[key]


def keys_of_few(file: GgufFile, ids: NDArray[np.int64]) -> Mapping[str, Value]:
    n, new = file.tensors[EMBEDDING].ne[1], {int(old): at for at, old in enumerate(ids)}
    found: dict[str, Value] = {}
    for key, value in file.metadata.items():
        if key.startswith(VOCABULARY) and value.element is not None and len(value.data) == n:
            found[key] = replace(value, data=pick_rows(value.data, ids))
    for key, value in special_keys(file):
        one = value.element is None
        found[key] = replace(value, data=renumber_tokens(value.data, new, one=one))
    if MERGES in file.metadata:
        merges = file.metadata[MERGES]
        tokens = set(found[TOKENS].data)
        found[MERGES] = replace(merges, data=[m for m in merges.data if is_among(m, tokens)])
    size = f"{architecture(file)}.vocab_size"
    if size in file.metadata:
        found[size] = replace(file.metadata[size], data=len(ids))
    return found


def pick_rows(data: Any, ids: NDArray[np.int64]) -> Any:
    return data[ids] if isinstance(data, np.ndarray) else [data[i] for i in ids]


def renumber_tokens(data: Any, new: Mapping[int, int], *, one: bool) -> Any:
    """Return the new ids of tokens. An id that was not kept stays unchanged. one: True if `data` is
    a single id."""
    if one:
        return new.get(int(data), int(data))
    return np.array([new.get(int(i), int(i)) for i in data], np.asarray(data).dtype)


def is_among(merge: str, tokens: Collection[str]) -> bool:
    first, _, second = merge.partition(" ")
    parts: Sequence[str] = (first, second, first + second)
    return all(part in tokens for part in parts)
