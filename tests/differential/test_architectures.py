"""Our own graphs compared with llama.cpp: a right graph agrees, and a wrong graph is located."""

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.architectures.base import Architecture
from lockstep.engine.architectures.gemma3 import Gemma3, Gemma3Hparams
from lockstep.engine.architectures.qwen3 import Qwen3
from lockstep.engine.batch import Batch
from lockstep.engine.errors import EngineError
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.model import Model
from lockstep.engine.ops.reference import ReferenceOps as Ops
from lockstep.engine.registry import import_members
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.asking.facts import facts_of_model
from lockstep.harness.bisect.bisection import bisect
from lockstep.harness.check.check import Plan, stand_in
from lockstep.harness.context.runner import Runner
from lockstep.harness.mutants.base import Mutant
from lockstep.harness.records import EXACT, PRESETS, Answered, Request, Settings, Verdict
from lockstep.harness.synth import any_arch
from lockstep.harness.synth.llama import LlamaRecipe, write_llama
from tests.differential.conftest import Checked, OpenPlan
from tests.differential.test_bisect_any_arch import with_key
from tests.recorded import variant_of

OURS = (
    "bert",
    "deepseek2",
    "gemma2",
    "gemma3",
    "gpt-oss",
    "gpt2",
    "lfm2",
    "mamba",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen3moe",
)
TOKENS = 24  # more than the window of 16 in made models of gemma3
MORE_THAN_A_TILE = 70  # number of tokens; flash attention computes 64 rows or more in another way


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Return a function that writes a model of an architecture and a weight type, each model
    once."""
    folder = tmp_path_factory.mktemp("architectures")

    def make(arch: str, quant: str) -> Path:
        path = folder / f"{arch}-{quant}.gguf"
        if not path.exists():
            variant_of(arch, path, quant=quant)
        return path

    return make


@pytest.fixture(scope="session")
def stretched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model that was trained on 128 tokens and is used with 512. Its slow pairs turn four
    times slower."""
    path = tmp_path_factory.mktemp("yarn") / "llama.gguf"
    write_llama(LlamaRecipe(rope_yarn_factor=4.0, rope_freqs=True), path)
    return path


def run_of(path: Path, settings: Settings = EXACT, n_tokens: int = TOKENS) -> Plan:
    return Plan(
        case=path.name,
        model=path,
        subject_model=path,
        settings=settings,
        n_tokens=n_tokens,
        n_steps=8,
        suites=("logits", "embeddings", "trace"),
        by_name=False,  # a model has either embeddings or logits
        command=str(path),
    )


def ends(verdicts: list[Verdict]) -> set[tuple[str, str]]:
    """Return the suites with their statuses; the suite `embeddings` is called `logits`."""
    asked = [v for v in verdicts if v.suite == "trace" or v.status != "not-applicable"]
    found = {(v.suite, v.status) for v in asked}
    return {("logits" if suite == "embeddings" else suite, status) for suite, status in found}


@pytest.mark.parametrize("arch", OURS)
@pytest.mark.parametrize(
    ("quant", "preset", "n_tokens"),
    [("F32", "exact", TOKENS), ("Q8_0", "default", TOKENS), ("F32", "default", MORE_THAN_A_TILE)],
)
def test_our_graph_agrees_with_llama_cpp_in_logits_and_every_shown_op(
    arch: str, quant: str, preset: str, n_tokens: int, made: Callable[..., Path], checked: Checked
) -> None:
    verdicts = checked(run_of(made(arch, quant), PRESETS[preset], n_tokens))
    assert ends(verdicts) == {("logits", "agreed"), ("trace", "agreed")}
    assert all("not compared" not in v.summary for v in verdicts)


@pytest.mark.parametrize("arch", OURS)
def test_our_graph_agrees_with_the_replay_of_llama_cpp(
    arch: str, made: Callable[..., Path]
) -> None:
    # With these tokens, no input of GELU is so close to the middle of two F16 numbers that rounding
    # errors decide. With [5, 42, 79, 16, 53], one of gemma2's is, and its result is off by 2e-5.
    batches = (Batch.of([7, 42, 79, 18, 53]), Batch.of([90], start=5))
    found = []
    for engine in ("reference", "replay"):
        with Runner().open(engine, made(arch, "F32"), EXACT) as session:
            request = Request(batches=batches, embeddings=arch == "bert")
            outcome = session.ask("evaluate", request)
            assert isinstance(outcome, Answered), outcome
            found.append(np.concatenate(outcome.value.logits))
    ours, replayed = found
    # both round each op once from float64; the limit covers 33 roundings, fewer than there are
    # consecutive ops
    assert np.abs(ours - replayed).max() < 2e-6 * np.abs(replayed).max()


# mistakes of real engines in these graphs, from the catalogue
WRONG = (
    *("query-bias-missing", "head-norms-missing", "rope-pairs-for-qwen2", "rope-pairs-for-phi3"),
    *("mask-causal-bert", "layer-norm-uncentred", "experts-shared-missing", "qkv-bias-missing"),
    *("rope-halves-for-deepseek2", "windows-exchanged", "soft-cap-missing", "sinks-ignored"),
    *("attention-key-length-ignored-gemma2", "windows-exchanged-gpt-oss"),
    *("rope-gemma3-bases-exchanged", "yarn-magnitude-missing", "yarn-ramp-inverted"),
)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_graph_is_located(
    name: str, made: Callable[..., Path], stretched: Path, checked: Checked
) -> None:
    import_members("lockstep.harness.mutants")
    wrong = Adapter.member(f"mutant:{name}")
    assert issubclass(wrong, Mutant)
    path = (
        stretched
        if "yarn" in name
        else made(wrong.shows_on.split(":")[-1].removesuffix("-scaled"), "F32")
    )
    verdicts = checked(replace(run_of(path), engine=wrong.name))
    assert ("trace", "diverged") in ends(verdicts)
    found = [v for v in verdicts if v.suite == "trace" and v.status == "diverged"]
    assert (wrong.site, "subject") in {(v.detail["site"], v.detail["at_fault"]) for v in found}


def test_patching_confirms_a_wrong_graph(
    made: Callable[..., Path], open_for: OpenPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Qwen3, "halves", False)
    with open_for(run_of(made("qwen3", "F32"))) as asked:
        found = bisect(asked.context)
    assert {str(c.site) for c in found.culprits} >= {"Qcur_rope-0", "Kcur_rope-1"}
    assert found.patched is not None
    assert (found.patched.sites, found.patched.confirms) == (len(found.found.guilty), True)


@pytest.mark.parametrize(
    ("engine", "way"),
    [
        ("mutant:batch-outputs-from-the-first", "with outputs of some tokens only"),
        ("mutant:cache-sequences-leak", "beside another sequence"),
    ],
)
def test_engine_with_own_graph_diverges_in_further_runs(
    engine: str, way: str, made: Callable[..., Path], checked: Checked
) -> None:
    """The first answer is right in every logit and every op; the other answers are wrong."""
    plan = replace(run_of(made("qwen3", "F32")), engine=engine, n_tokens=8)
    first, *wrong = checked(replace(plan, suites=("logits",)))
    assert first.status == "agreed"
    assert {verdict.status for verdict in wrong} == {"diverged"}
    assert wrong[0].detail["asked"] == way  # further runs may show it too


# in these two, llama.cpp has no names for the inputs of most products
@pytest.mark.parametrize("arch", sorted({*OURS} - {"mamba", "lfm2"}))
def test_every_product_of_our_graph_is_judged_on_nearly_empty_inputs(
    arch: str, made: Callable[..., Path], checked: Checked
) -> None:
    path = made(arch, "Q8_0")
    *rest, verdict = checked(replace(run_of(path), suites=("products",)))
    assert verdict.status == "agreed", verdict.summary
    assert [v.status for v in rest] == ["not-applicable"] * (arch in ("bert", "gemma2"))
    with GgufFile.open(path) as file:
        matrices = sum(len(tensor.ne) > 1 for tensor in file.tensors.values())
    # Not multiplied: tables of positions and token types; embeddings, unless they are the head too;
    # biases of experts. Without a name: the input of bert's second layer, and the values that
    # gemma2 caps.
    others = {"bert": 3 + 3, "gpt-oss": 1 + 2 * 3, "gpt2": 2}.get(arch, 1)
    assert verdict.detail["sites"] == 2 * (matrices - others)  # for the prompt, and for one token
    assert verdict.detail["sees"] < 1e-4


def test_window_hides_older_tokens(made: Callable[..., Path]) -> None:
    """Layers of the generated gemma3 see 16 tokens; the last of six layers sees all tokens."""
    model = Model(made("gemma3", "F32"), Ops())
    try:
        hp = model.graph.hparams
        assert isinstance(hp, Gemma3Hparams)
        assert (hp.n_swa, hp.has_window(0), hp.has_window(5)) == (16, True, False)
        seen: list[NDArray[Any]] = []

        def probe(name: str, layer: int | None, value: NDArray[Any]) -> NDArray[Any]:
            if (name, layer) == ("kq_soft_max", 0):
                seen.append(value > 0)  # (heads, tokens, cells)
            return value

        memory = model.new_memory()
        model.decode(Batch.of(range(20)), memory)
        model.decode(Batch.of([1], start=20), memory, probe)
        assert seen[0][0, 0].tolist() == [False] * 5 + [True] * 16
    finally:
        model.close()


def test_layer_count_allocates_nothing(made: Callable[..., Path], tmp_path: Path) -> None:
    huge = with_key(
        made("gemma3", "F32"), "gemma3.block_count", b"\xff" * 4, tmp_path / "huge.gguf"
    )
    tracemalloc.start()
    try:
        with GgufFile.open(huge) as file, pytest.raises(EngineError):
            Gemma3(file)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20  # the file has 350 kB
    finally:
        tracemalloc.stop()


def test_model_without_our_graph_is_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is a qwen2 without biases, which llama.cpp accepts."""
    monkeypatch.setattr(any_arch, "LEFT_OUT", {"qwen2": r"scale$|bias$"})
    path = tmp_path / "qwen2.gguf"
    variant_of("qwen2", path)
    facts = facts_of_model(path)
    assert "attn_q.bias' is missing" in facts.not_ours
    assert stand_in("reference", facts) == "replay"


@pytest.mark.parametrize("preset", ["exact", "default"])
def test_positions_stretched_by_yarn_agree(preset: str, stretched: Path, checked: Checked) -> None:
    verdicts = checked(run_of(stretched, PRESETS[preset]))
    assert ends(verdicts) == {("logits", "agreed"), ("trace", "agreed")}


def test_model_that_llama_cpp_refuses_to_load_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: Checked
) -> None:
    """Our engine also refuses the model."""
    lacks = any_arch.LEFT_OUT["qwen3"] + r"|^blk\.1\.attn_q\.weight$"
    monkeypatch.setattr(any_arch, "LEFT_OUT", {"qwen3": lacks})
    path = tmp_path / "incomplete.gguf"
    variant_of("qwen3", path)
    plan = replace(run_of(path), suites=("logits", "trace"), by_name=True)
    verdicts = checked(plan)
    assert ends(verdicts) == {("logits", "not-compared"), ("trace", "not-compared")}
    assert all("'blk.1.attn_q.weight' not found" in v.summary for v in verdicts)


def test_table_lists_all_our_architectures() -> None:
    import_members("lockstep.engine.architectures")
    assert sorted(Architecture.family) == sorted({*OURS, "llama"})
