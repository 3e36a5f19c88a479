"""The llama graph: relations between batches, and the use of each tensor."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.errors import InvalidBatch, InvalidModel, NoRoom, Unsupported
from lockstep.engine.model import Model
from lockstep.engine.ops.fast.ops import Fast
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.reference import ReferenceOps
from lockstep.engine.quants.base import F32
from lockstep.harness.judging.compare import largest, worst_distance
from lockstep.harness.judging.noise import noise_floor
from lockstep.harness.judging.tolerances import whole_run
from lockstep.harness.records import EXACT
from lockstep.harness.synth.gguf_writer import write_gguf
from lockstep.harness.synth.llama import LlamaRecipe, metadata, tensors, write_llama

TINY = LlamaRecipe(n_vocab=320, vocabulary=False, n_ff=64)
IDS = [1, 17, 300, 5, 17, 44, 9, 250, 31, 8]
Open = Callable[..., Model]


@pytest.fixture
def opened(tmp_path: Path) -> Any:
    """Write a recipe's model and open it; close it at the end."""
    models: list[Model] = []

    def open_(
        recipe: LlamaRecipe = TINY, ops: ReferenceOps | None = None, **settings: Any
    ) -> Model:
        path = tmp_path / f"{len(models)}.gguf"
        write_llama(recipe, path)
        models.append(Model(path, ops or Mirror(), **settings))
        return models[-1]

    yield open_
    for model in models:
        model.close()


def logits_of(model: Model, *batches: Batch) -> F32:
    """Return the logits of all batches, decoded one after the other."""
    memory = model.new_memory()
    return np.concatenate([model.decode(batch, memory) for batch in batches])


def values_of(model: Model, batch: Batch) -> dict[tuple[str, int | None], NDArray[Any]]:
    """Return every site's value."""
    seen: dict[tuple[str, int | None], NDArray[Any]] = {}

    def probe(name: str, layer: int | None, value: NDArray[Any]) -> NDArray[Any]:
        seen[name, layer] = value
        return value

    model.decode(batch, model.new_memory(), probe)
    return seen


# --- batches --------------------------------------------------------------------------------

RECIPES = {
    "F32": TINY,
    "Q8_0": replace(TINY, quant="Q8_0"),
    "F16, experts": replace(TINY, quant="F16", n_expert=4, n_expert_used=2),
}
ONE_BY_ONE = [Batch.of([token], start=i) for i, token in enumerate(IDS)]
SPLITS = {
    "token by token": ONE_BY_ONE,
    "3 and 7": [Batch.of(IDS[:3]), Batch.of(IDS[3:], start=3)],
}


def floor(model: Model, batch: Batch) -> float:
    """Return the allowed distance between two honest runs of this model."""
    noise = noise_floor(model, [batch], EXACT, lanes=1, seed=1)
    return float(np.max(whole_run(noise.relative, largest(noise.logits[0])).allowed))


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
@pytest.mark.parametrize("flash_attn", [False, True])
def test_fast_gives_the_same_numbers_for_any_prompt_split(
    opened: Open, recipe: LlamaRecipe, flash_attn: bool
) -> None:
    """Terms of each sum are added in order, and hidden tokens add zeros."""
    model = opened(recipe, Fast(2), flash_attn=flash_attn)
    whole = logits_of(model, Batch.of(IDS))
    for batches in SPLITS.values():
        assert np.array_equal(logits_of(model, *batches), whole)
    model.n_ubatch = 4
    assert np.array_equal(logits_of(model, Batch.of(IDS)), whole)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_mirror_stays_within_the_noise_floor_for_any_prompt_split(
    opened: Open, recipe: LlamaRecipe
) -> None:
    """The bits may differ: BLAS sums a float64 product in an order that depends on its shape."""
    model = opened(recipe)
    whole = logits_of(model, Batch.of(IDS))
    for batches in SPLITS.values():
        assert worst_distance(whole, logits_of(model, *batches)) <= floor(model, Batch.of(IDS))
    forgets = [Batch.of(IDS[:3]), Batch.of(IDS[3:], seq_id=1)]
    assert worst_distance(whole, logits_of(model, *forgets)) > floor(model, Batch.of(IDS))


def interleaved(a: list[int], b: list[int]) -> Batch:
    n = len(a)
    return Batch(
        tokens=np.array([a, b], np.int32).T.reshape(-1).copy(),
        positions=np.repeat(np.arange(n, dtype=np.int32), 2),
        seq_ids=np.tile(np.array([0, 1], np.int32), n),
        outputs=np.ones(2 * n, bool),
    )


@pytest.mark.parametrize("flash_attn", [False, True])
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_sequences_in_one_batch_do_not_influence_each_other(
    opened: Open, recipe: LlamaRecipe, flash_attn: bool
) -> None:
    model = opened(recipe, Fast(2), flash_attn=flash_attn)
    first, second = IDS[:5], IDS[5:]
    both = logits_of(model, interleaved(first, second))
    assert np.array_equal(both[0::2], logits_of(model, Batch.of(first)))
    assert np.array_equal(both[1::2], logits_of(model, Batch.of(second)))


def test_neighbour_changes_no_bit_of_mirrors_answer(opened: Open) -> None:
    model = opened()
    ours = [logits_of(model, interleaved(IDS[:5], other))[0::2] for other in (IDS[5:], [2] * 5)]
    assert ours[0].tobytes() == ours[1].tobytes()


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
@pytest.mark.parametrize("shown", [[9], [0, 4, 5], [], list(range(10))], ids=str)
def test_the_outputs_mask_selects_rows(opened: Open, recipe: LlamaRecipe, shown: list[int]) -> None:
    model = opened(recipe, Fast(2))
    batch = Batch.of(IDS)
    whole = logits_of(model, batch)
    masked = Batch(batch.tokens, batch.positions, batch.seq_ids, np.isin(np.arange(10), shown))
    found = logits_of(model, masked)
    assert found.shape == (len(shown), 320)
    assert np.array_equal(found, whole[shown])
    # the mirror's ops accept a batch without rows too
    model.ops = Mirror()
    assert logits_of(model, masked).shape == found.shape


@pytest.mark.parametrize("ids", [[-1], [320], [5, 321]])
def test_a_token_beyond_the_vocabulary_is_refused(opened: Open, ids: list[int]) -> None:
    with pytest.raises(InvalidBatch, match="token id"):
        logits_of(opened(), Batch.of(ids))


def test_a_prompt_longer_than_the_cache_is_refused(opened: Open) -> None:
    with pytest.raises(NoRoom, match="no room for a batch of 10 tokens; raise n_ctx"):
        logits_of(opened(n_ctx=9), Batch.of(IDS))


# --- embeddings and head ----------------------------------------------------------------------


@pytest.mark.parametrize("tied", [False, True])
def test_head_is_its_own_matrix_or_the_embeddings(opened: Open, tied: bool) -> None:
    model = opened(replace(TINY, tied=tied))
    assert ("output.weight" in model.graph.tensors.weights) is not tied
    seen = values_of(model, Batch.of(IDS))
    embeddings = model.graph.tensors.weights.tensor("token_embd.weight", (320, 64))
    assert np.array_equal(seen["embd", None], embeddings.values()[IDS])
    by_embeddings = model.ops.linear(seen["result_norm", None], embeddings)
    assert np.array_equal(seen["result_output", None], by_embeddings) is tied


# --- positions --------------------------------------------------------------------------------


@pytest.mark.parametrize("n_embd_head", [0, 32, 8])
def test_heads_may_be_wider_or_narrower_than_their_share_of_the_width(
    opened: Open, n_embd_head: int
) -> None:
    model = opened(replace(TINY, n_embd_head=n_embd_head))
    seen = values_of(model, Batch.of(IDS))
    assert seen["Qcur_rope", 0].shape == (10, 4, n_embd_head or 16)
    assert seen["kqv_out", 0].shape == (10, 4 * (n_embd_head or 16))
    assert seen["attn_out", 0].shape == (10, 64)


def tensor(model: Model, layer: int, key: str) -> NDArray[np.float64]:
    weight = model.graph.tensors.in_layer(layer, f"{key}.weight")
    values: NDArray[np.float64] = weight.values().astype(np.float64)
    return values


# --- required tensors ---------------------------------------------------------------------------


def written(path: Path, change: Callable[[list[Any]], list[Any]]) -> Path:
    write_gguf(path, metadata(TINY), change(list(tensors(TINY))))
    return path


NAMES = [name for name, *_ in tensors(TINY) if "blk.1" not in name and name != "output.weight"]


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / "m.gguf", lambda rows: [row for row in rows if row[0] != name])
    with pytest.raises(InvalidModel, match=f"tensor '{name}' is missing"):
        Model(path, Mirror())


@pytest.mark.parametrize("name", [*NAMES, "output.weight"])
def test_a_tensor_of_the_wrong_shape_is_named(tmp_path: Path, name: str) -> None:
    def change(rows: list[Any]) -> list[Any]:
        small = (name, (32, 3), "F32", bytes(4 * 32 * 3))
        return [small if row[0] == name else row for row in rows]

    with pytest.raises(InvalidModel, match=rf"tensor '{name}' has shape \(3, 32\); expected \("):
        Model(written(tmp_path / "m.gguf", change), Mirror())


@pytest.mark.parametrize("name", ["blk.0.attn_q.bias", "blk.2.attn_q.weight", "rope_freqs"])
def test_unused_tensor_is_refused(tmp_path: Path, name: str) -> None:
    extra = (name, (8,), "F32", bytes(32))
    path = written(tmp_path / "m.gguf", lambda rows: [*rows, extra])
    with pytest.raises(Unsupported, match=f"tensor '{name}' is not known"):
        Model(path, Mirror())


def test_unimplemented_weight_format_is_refused_with_its_tensor(tmp_path: Path) -> None:
    def change(rows: list[Any]) -> list[Any]:
        row = ("output.weight", (64, 320), "Q8_1", bytes(64 * 320 // 32 * 36))
        return [row if r[0] == "output.weight" else r for r in rows]

    said = r"tensor 'output.weight': no .* named 'Q8_1' \(near: Q8_0"
    with pytest.raises(Unsupported, match=said):
        Model(written(tmp_path / "m.gguf", change), Mirror())
