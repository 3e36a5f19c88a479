"""Small models from recipes have the same bytes everywhere, and are written piece by piece.
Impossible recipes are refused."""

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.batch import Batch
from lockstep.engine.errors import EngineError
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.blackbox.in_check import questions
from lockstep.harness.check.check import run_suites
from lockstep.harness.cli.synth import SYNTH_TYPES
from lockstep.harness.report.header import sha256_of
from lockstep.harness.selftest.clean_cases import random_recipe
from lockstep.harness.synth.builtin import BUILTIN
from lockstep.harness.synth.generator import MAKERS, integers, stream, uniform
from lockstep.harness.synth.llama import LlamaRecipe, check, write_llama
from lockstep.harness.synth.vocabulary import SMALLEST, sentencepiece
from tests.all_types import NAMES
from tests.harness.check.test_check import plan_for
from tests.models import builtin, opened, written
from tests.plans import open_both

# Other machines, other versions of numpy and later versions of Lockstep must write these bytes.
SHA256 = {
    "f32": "1c309a1d22adcef961ad87780bb536fcf2677c8837140b1c7082b25a5d8d9eee",
    "f16": "16e5c9f8d49c71f005734351911249df215adf5044ace511e8092ff7eed87ba4",
    "bf16": "b77449058b49d60f5a6674bf7e1b8ff5d382b2def6cd0856739ace744a4c4311",
    "q8_0": "07dc4f3c19933234d3426320db7f708dafe76e19d48347b30bcd2791eb01ca3e",
    "q4_0": "93cfb6b745e66f75df4028612209f79d6e4bafe2109c595b18957416dd0a534d",
    "moe": "0d9e5bef25fe4d111cff011784134b4ebd1a07a16ad5eda61c1b035c31ff6a6c",
    "moe-q8_0": "3382439b13577a637e157901b65aa2a2204fd61050f5097611654497e828b449",
    "hparams": "2261ac0e08f9f117b0f40587a097bde4e24d6b90da9ceaccbe6e4fbc80a7d0a6",
}


@pytest.mark.parametrize("name", BUILTIN)
def test_built_in_model_is_the_same_bytes_on_every_machine(name: str, tmp_path: Path) -> None:
    assert sha256_of(builtin(name, tmp_path)) == SHA256[name]


def test_every_pinned_hash_is_of_a_built_in_model() -> None:
    assert SHA256.keys() == BUILTIN.keys()
    assert len(set(SHA256.values())) == len(SHA256)


@pytest.mark.parametrize("quant", MAKERS)
def test_recipe_determines_the_bytes_and_each_seed_gives_other_bytes(
    quant: str, tmp_path: Path
) -> None:
    def made(seed: int) -> bytes:
        recipe = {"quant": quant, "n_layer": 1, "n_embd": 256, "n_ff": 256}
        return written(tmp_path, f"{seed}.gguf", seed=seed, **recipe).read_bytes()

    first = made(11)
    assert made(11) == first
    assert made(12) != first


@pytest.mark.parametrize("seed", range(12))
def test_a_random_recipe_can_be_run_and_its_logits_are_finite(seed: int, tmp_path: Path) -> None:
    recipe = random_recipe(seed)
    path = tmp_path / "m.gguf"
    write_llama(recipe, path)
    assert_runs(path)


def test_random_recipes_are_small_legal_and_of_every_type_with_a_product() -> None:
    recipes = [random_recipe(seed) for seed in range(600)]
    for recipe in recipes:
        check(recipe)
        assert recipe.n_embd * recipe.n_ff * max(1, recipe.n_expert) <= 5 * 512 * 512
        assert recipe.n_head * recipe.head_size <= 640
    assert {recipe.quant for recipe in recipes} == set(NAMES)
    assert set(NAMES) == MAKERS.keys() - {"F64"}
    assert {(r.n_head, r.head_size) for r in recipes if r.quant == "Q6_K"} >= {(1, 256), (16, 16)}


def test_command_line_names_every_type_that_can_be_written() -> None:
    assert set(SYNTH_TYPES.split()) == MAKERS.keys()


@pytest.mark.parametrize("name", BUILTIN)
def test_a_built_in_model_runs_and_its_logits_are_finite(name: str, tmp_path: Path) -> None:
    assert_runs(builtin(name, tmp_path))


class UsualEps(Mirror):
    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        return super().rms_norm(x, weight, 1e-5)


class IgnoresEps(Reference, name="test:ignores-eps"):
    ops = UsualEps


@pytest.mark.parametrize(
    ("engine", "levels", "suite"),
    [
        ("mutant:rope-base-of-llama", ("logits",), "logits"),
        ("mutant:rope-base-of-llama", ("greedy",), "decode"),
        ("test:ignores-eps", ("logits",), "black-box"),
    ],
)
def test_ignored_metadata_key_is_found_on_a_built_in_model(
    engine: str, levels: tuple[str, ...], suite: str, tmp_path: Path
) -> None:
    diverges = {}
    for name in ("f32", "hparams"):
        plan = plan_for(builtin(name, tmp_path), engine=engine, n_tokens=32, n_steps=16)
        with open_both(plan) as both:
            info = replace(both.context.subject_info, levels=levels, shows_nodes=False)
            context = replace(both.context, subject_info=info)
            context.on_made_models = questions(plan)
            diverges[name] = "diverged" in {v.status for v in run_suites(context, (suite,))}
    assert diverges == {"f32": False, "hparams": True}


def assert_runs(path: Path) -> None:
    model = opened(path)
    n_vocab = model.graph.hparams.n_vocab
    logits = model.decode(Batch.of([1, 5, n_vocab - 1]), model.new_memory())
    model.close()
    assert logits.shape == (3, n_vocab)
    assert np.isfinite(logits).all()
    assert logits.std() > 0.05  # large enough to show a fault
    assert np.abs(logits).max() < 1000


REFUSED = [
    ({"quant": "Q9_9"}, "'Q9_9'"),
    ({"quant": "Q8_K"}, "n_embd is 64; Q8_K needs a multiple of 256"),
    ({"quant": "Q8_K", "n_embd": 256, "n_ff": 256}, "cannot make weights of type 'Q8_K'"),
    ({"quant": "Q8_0", "n_ff": 100}, "n_ff is 100; Q8_0 needs a multiple of 32"),
    ({"n_embd": 48, "quant": "Q4_0"}, "n_embd is 48"),
    ({"n_head": 3, "n_head_kv": 2, "n_embd_head": 8}, "3 heads are not a multiple of 2 KV heads"),
    ({"n_embd_head": 7}, "a head has 7 elements"),
    ({"n_vocab": SMALLEST - 1}, f"a vocabulary needs at least {SMALLEST}"),
    ({"n_expert": 4}, "0 of 4 experts"),
    ({"n_expert": 2, "n_expert_used": 3}, "3 of 2 experts"),
    ({"n_expert_used": 1}, "1 of 0 experts"),
    ({"n_expert": -1}, "0 of -1 experts"),
    ({"n_layer": 0}, "n_layer is 0"),
    ({"n_embd": 0}, "n_embd is 0"),
    ({"n_head": 0}, "n_head is 0"),
    ({"n_head_kv": 0}, "n_head_kv is 0"),
    ({"n_embd": 2}, "head_size is 0"),
    ({"n_ff": -96}, "n_ff is -96"),
    ({"n_vocab": 0, "vocabulary": False}, "n_vocab is 0"),
    ({"seed": -1}, "seed is -1"),
    ({"seed": 2**128}, "seed is 340282366920938463463374607431768211456"),
]


@pytest.mark.parametrize(("recipe", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_a_bad_recipe_is_refused_and_leaves_no_file(
    recipe: dict[str, object], says: str, tmp_path: Path
) -> None:
    with pytest.raises(EngineError) as refusal:
        written(tmp_path, **recipe)
    assert says in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


def test_a_model_may_lack_a_vocabulary_and_a_head(tmp_path: Path) -> None:
    assert_runs(written(tmp_path, n_vocab=17, vocabulary=False, tied=True))


def test_a_large_model_is_written_in_small_pieces(tmp_path: Path) -> None:
    recipe = LlamaRecipe(
        quant="Q8_0", n_layer=4, n_embd=768, n_head=12, n_head_kv=12, n_ff=3072, n_vocab=16384
    )
    path = tmp_path / "large.gguf"
    tracemalloc.start()
    try:
        write_llama(recipe, path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 50e6
    assert peak < 0.6 * path.stat().st_size


def test_chunk_size_does_not_change_the_bytes() -> None:
    """Drawing 64 weights at once gives the same numbers as drawing 32 weights twice."""
    whole, bits = uniform(stream(1, "x"), 64, 1.0), stream(1, "x")
    assert np.array_equal(whole, np.concatenate([uniform(bits, 32, 1.0) for _ in range(2)]))


def test_every_tensor_has_its_own_stream(tmp_path: Path) -> None:
    """An additional layer changes no weight of the other layers."""
    from lockstep.engine.gguf.file import GgufFile

    recipe = LlamaRecipe(seed=9)
    small, large = tmp_path / "small.gguf", tmp_path / "large.gguf"
    write_llama(recipe, small)
    write_llama(replace(recipe, n_layer=3), large)
    with GgufFile.open(small) as a, GgufFile.open(large) as b:
        assert all(np.array_equal(a.raw(name), b.raw(name)) for name in a.tensors)
        assert len(b.tensors) > len(a.tensors)


@pytest.mark.parametrize("n_vocab", [SMALLEST, SMALLEST + 1, 1000])
def test_every_piece_of_a_vocabulary_is_unique(n_vocab: int) -> None:
    keys = sentencepiece(n_vocab, 3)
    tokens = keys["tokenizer.ggml.tokens"][1]
    assert len(tokens) == len(set(tokens)) == n_vocab
    assert len(keys["tokenizer.ggml.scores"][1]) == n_vocab
    assert len(keys["tokenizer.ggml.token_type"][1]) == n_vocab


def test_integers_include_both_extremes() -> None:
    drawn = integers(stream(0, "y"), 4000, 255)
    assert (drawn.min(), drawn.max()) == (0, 254)
