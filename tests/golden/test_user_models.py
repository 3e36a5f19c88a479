"""Goldens of a user's models: any architecture, a separate folder, and wrong weights are found."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from lockstep.engine.errors import Unsupported
from lockstep.golden.manifest import NAME, read_manifest
from lockstep.golden.of_user import regenerate_user
from lockstep.golden.replay import replay
from lockstep.golden.store import DEFAULT_ROOT, BrokenGolden
from lockstep.golden.verify import verify
from lockstep.harness.records import Verdict
from lockstep.harness.shadow.models import make_variants
from lockstep.harness.synth.llama import LlamaRecipe, write_llama
from tests.golden.folders import needs_oracle
from tests.golden.other_cpu import features
from tests.models import with_changed_weight

pytestmark = needs_oracle
NODE = "l_out-0"
LLAMA, FOREIGN, EMBEDS, BOTH = "little", "gpt2", "bert", "t5"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("users-models")
    make_variants((FOREIGN, EMBEDS, BOTH), folder)
    write_llama(LlamaRecipe(seed=21, n_layer=2), folder / f"{LLAMA}.gguf")
    return folder


def path_of(models: Path, name: str) -> Path:
    return models / f"{name}.gguf"


@pytest.fixture(scope="module")
def notes() -> list[str]:
    return []


@pytest.fixture(scope="module")
def root(models: Path, notes: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the vectors of all models in one folder."""
    root = tmp_path_factory.mktemp("users") / "vectors"
    regenerate_user(root, [path_of(models, LLAMA)], note=notes.append, nodes=[NODE])
    others = [path_of(models, name) for name in (FOREIGN, EMBEDS, BOTH)]
    regenerate_user(root, others, note=notes.append)
    return root


def held(
    root: Path, models: Path, engine: str, name: str, *kinds: str, instead: Path | None = None
) -> list[Verdict]:
    only = [f"{kind}/{name}" for kind in kinds]
    return list(replay(root, engine, [path_of(models, name)], only=only, subject_model=instead))


def statuses(found: Sequence[Verdict]) -> list[str]:
    return [verdict.status for verdict in found]


def test_each_model_has_its_vectors_and_notes_missing_parts(root: Path, notes: list[str]) -> None:
    paths = {e.path.removesuffix(".json") for e in read_manifest(root) if e.kind != "tensors"}
    of_all = {f"{kind}/{name}" for kind in ("run", "weights")
              for name in (LLAMA, FOREIGN, EMBEDS, BOTH)}  # fmt: skip
    assert paths == {*of_all, f"tokens/{LLAMA}"}
    assert sorted(notes) == sorted(
        f"{name}: no tokens: the file has no vocabulary" for name in (FOREIGN, EMBEDS, BOTH)
    )
    assert verify(root) == []
    assert sum(entry.bytes for entry in read_manifest(root)) < 4 * 5_000_000


def test_result_comes_before_the_requested_nodes(root: Path) -> None:
    shown = {}
    for name in (LLAMA, FOREIGN, EMBEDS, BOTH):
        document = json.loads((root / f"run/{name}.json").read_text())
        shown[name] = [row["name"] for row in document["shown"]]
    assert shown == {
        LLAMA: ["logits", "attn_norm-0", "Qcur-0 ROPE", "Kcur-0 ROPE", NODE],
        FOREIGN: ["logits", "attn_norm-0", "l_out-0"],
        EMBEDS: ["embeddings", "inp_norm-0"],
        BOTH: ["logits", "attn_norm-0", "l_out-0"],
    }


def test_vectors_are_reproduced_byte_for_byte(root: Path, models: Path, tmp_path: Path) -> None:
    regenerate_user(tmp_path, [path_of(models, LLAMA)], nodes=[NODE])
    regenerate_user(tmp_path, [path_of(models, name) for name in (FOREIGN, BOTH)])
    made = read_manifest(tmp_path)
    assert len(made) > 10
    for entry in made:
        assert (tmp_path / entry.path).read_bytes() == (root / entry.path).read_bytes(), entry.path


def test_vectors_made_on_another_cpu_are_the_same_bytes(
    root: Path, models: Path, tmp_path: Path
) -> None:
    """numpy, BLAS and libc see another CPU. test_other_cpus.py also limits compiled code."""
    other, here = features()
    off = " ".join(name for name in other if name in here)
    less = {"NPY_DISABLE_CPU_FEATURES": off, "OPENBLAS_CORETYPE": "Prescott"}
    less["GLIBC_TUNABLES"] = "glibc.cpu.hwcaps=-AVX512F,-AVX2,-FMA,-FMA4"
    command = [sys.executable, "-m", "lockstep.harness.cli", "golden", "regen", "-q"]
    command += [str(path_of(models, FOREIGN)), "--out", str(tmp_path)]
    done = subprocess.run(command, env={**os.environ, **less}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for entry in read_manifest(tmp_path):
        assert (tmp_path / entry.path).read_bytes() == (root / entry.path).read_bytes(), entry.path


@pytest.mark.parametrize("engine", ["reference", "llama.cpp"])
def test_right_engines_agree_with_all_vectors(engine: str, root: Path, models: Path) -> None:
    every = (LLAMA, FOREIGN, EMBEDS, BOTH)
    found = list(replay(root, engine, [path_of(models, name) for name in every]))
    assert statuses(found) == ["agreed"] * len(found), found
    for name in every:
        assert {"golden-run", "golden-weights"} <= {v.suite for v in found if v.case == name}


@pytest.mark.parametrize(
    "engine", ["mutant:stale-norm", "mutant:rope-half-split", "mutant:kv-head-modulo"]
)
def test_a_wrong_engine_diverges_on_a_llama(engine: str, root: Path, models: Path) -> None:
    found = held(root, models, engine, LLAMA, "run")
    assert [v.status for v in found if "logits" in v.summary] == ["diverged"]
    assert f"golden verify {root} --engine {engine} --only run/{LLAMA}" in found[0].repro


@pytest.mark.parametrize("engine", ["reference", "llama.cpp"])
def test_one_wrong_weight_is_named(engine: str, root: Path, models: Path, tmp_path: Path) -> None:
    tensor = "blk.1.ffn_up.weight"
    right, wrong = path_of(models, FOREIGN), tmp_path / "wrong.gguf"
    with_changed_weight(right, wrong, tensor, row=3, column=5, change=1.0)
    found = held(root, models, engine, FOREIGN, "run", "weights", instead=wrong)
    by_suite = {v.suite: v for v in found if v.status == "diverged"}
    assert by_suite.keys() == {"golden-run", "golden-weights"}
    assert by_suite["golden-weights"].detail == {"tensor": tensor}


def test_engine_without_a_graph_learns_which_nodes_were_not_compared(
    root: Path, models: Path
) -> None:
    found = held(root, models, "fast", BOTH, "run", "weights")
    assert set(statuses(found)) == {"not-compared", "not-applicable", "agreed"}
    assert found[0].status == "not-compared"
    assert "fast" in found[0].summary


def test_another_model_is_refused(root: Path, models: Path) -> None:
    found = held(root, models, "reference", FOREIGN, "weights", instead=path_of(models, EMBEDS))
    assert any("the file has no such tensor" in v.summary for v in found if v.status == "diverged")


def test_verify_accepts_a_model_in_the_folder(root: Path, models: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(root, tmp_path / "v")
    shutil.copy(path_of(models, FOREIGN), copy / "any-name.gguf")
    assert verify(copy) == []
    assert statuses(list(replay(copy, only=[f"weights/{FOREIGN}"]))) == ["agreed"]
    shutil.copy(__file__, copy / "stranger.gguf")
    assert [problem.path for problem in verify(copy)] == ["stranger.gguf"]


def test_misspelt_name_gets_the_nearest_suggestion(
    root: Path, models: Path, tmp_path: Path
) -> None:
    with pytest.raises(Unsupported, match=r"no node named 'l_out0' \(near: .*l_out-0.* in all\)"):
        regenerate_user(tmp_path / "v", [path_of(models, LLAMA)], nodes=["l_out0"])
    with pytest.raises(BrokenGolden, match=r"no golden 'run/gtp2' \(.*run/gpt2"):
        list(replay(root, only=["run/gtp2"]))
    with pytest.raises(BrokenGolden, match=r"gtp2.gguf: no such file.*gpt2.gguf"):
        regenerate_user(tmp_path / "v", [models / "gtp2.gguf"])
    with pytest.raises(Unsupported, match=r"no engine named 'referense' \(near: reference"):
        held(root, models, "referense", LLAMA, "weights")
    assert not (tmp_path / "v").exists()


def test_user_goldens_never_change_shipped_vectors(models: Path) -> None:
    before = (DEFAULT_ROOT / NAME).read_bytes()
    with pytest.raises(BrokenGolden, match="a folder of yours"):
        regenerate_user(DEFAULT_ROOT, [path_of(models, LLAMA)])
    assert (DEFAULT_ROOT / NAME).read_bytes() == before


def test_vectors_of_other_models_stay(root: Path, models: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(root, tmp_path / "v")
    regenerate_user(copy, [path_of(models, FOREIGN)], nodes=["result_norm"])
    changed = {e.path for e in read_manifest(copy)} ^ {e.path for e in read_manifest(root)}
    assert changed == set()
    same = {
        name: (copy / f"run/{name}.json").read_bytes() == (root / f"run/{name}.json").read_bytes()
        for name in (LLAMA, FOREIGN)
    }
    assert same == {LLAMA: True, FOREIGN: False}
