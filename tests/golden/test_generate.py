"""The generator reproduces the same bytes, and the oracle still agrees with the goldens."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lockstep.golden import generate
from lockstep.golden.fetch import NAMES
from lockstep.golden.generate import regenerate
from lockstep.golden.load import load_vectors
from lockstep.golden.manifest import NAME, read_manifest
from lockstep.golden.store import DEFAULT_ROOT, BrokenGolden, parse_tensors, tensor_bytes
from lockstep.golden.suites.base import Golden
from lockstep.golden.verify import holds, verify
from lockstep.golden.write import Made, Progress
from lockstep.harness.synth.llama import LlamaRecipe, write_llama
from tests.golden.folders import (
    FETCHED_PATHS,
    STORIES,
    STORIES_PATHS,
    copied,
    edit_json,
    needs_oracle,
    needs_stories,
    reseal,
)

ENTRIES = read_manifest(DEFAULT_ROOT)
MADE = [e for e in ENTRIES if e.path.removesuffix(".json") not in FETCHED_PATHS]
pytestmark = needs_oracle


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Provide newly made vectors, including those of stories260K if its file exists. They must have
    the bytes of the committed vectors."""
    root, made = tmp_path_factory.mktemp("fresh") / "v1", list[Made]()
    of_builtin = generate.of_builtin

    def made_once(oracle: str, progress: Progress) -> list[Made]:
        made.extend(() if made else of_builtin(oracle, progress))
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate, "of_builtin", made_once)
        regenerate(root)
        if STORIES.exists():
            regenerate(root, [STORIES])
        yield root


def other_bytes(fresh: Path, *beginnings: str, stories: bool = False) -> list[str]:
    """Return newly made files that differ from the committed files. One test compares many files,
    because making them takes most of the time, and the tests of a module may run in several
    processes."""
    paths = [p for e in MADE if (p := e.path).startswith(beginnings)]
    chosen = [path for path in paths if ("stories260K" in path) == stories]
    assert chosen
    return [p for p in chosen if (fresh / p).read_bytes() != (DEFAULT_ROOT / p).read_bytes()]


EXACT_ONES = ("dequant/", "files/", "tokens/", "ops/", "samplers/")
SUMS = ("logits/", "dot/")  # these depend on the order of the oracle's additions


def test_ids_and_weights_are_reproduced_byte_for_byte(fresh: Path) -> None:
    assert {e.path.split("/")[0] + "/" for e in MADE} == {*EXACT_ONES, *SUMS}
    assert other_bytes(fresh, *EXACT_ONES) == []


def outdated(fresh: Path, *, stories: bool) -> list[str]:
    """Return the reasons why committed vectors are outdated."""
    new = {entry.path: entry for entry in read_manifest(fresh)}
    old = {entry.path: entry for entry in ENTRIES}
    chosen = [e for e in MADE if e.path.startswith(SUMS) and e.path.endswith(".json")]
    chosen = [e for e in chosen if ("stories260K" in e.path) == stories]
    assert chosen
    found = [
        Golden.member(entry.kind)().why_outdated(
            load_vectors(DEFAULT_ROOT, entry, old), load_vectors(fresh, new[entry.path], new)
        )
        for entry in chosen
    ]
    return [why for why in found if why]


def test_sums_of_any_cpu_leave_the_vectors_unchanged(fresh: Path) -> None:
    assert outdated(fresh, stories=False) == []


@needs_stories
def test_vectors_of_stories260k_are_reproduced(fresh: Path) -> None:
    assert other_bytes(fresh, *EXACT_ONES, stories=True) == []
    assert outdated(fresh, stories=True) == []


def test_new_goldens_verify_in_any_folder(fresh: Path) -> None:
    assert verify(fresh) == []


def test_oracle_still_gives_the_same_answers() -> None:
    models = [STORIES] if STORIES.exists() else []
    verdicts = list(holds(models=models))
    skipped = [v for v in verdicts if v.status == "not-compared"]
    assert {v.case for v in skipped} <= {*NAMES, *([] if models else ["stories260K"])}
    rest = [v for v in verdicts if v not in skipped]
    assert len(rest) > 20
    assert {v.status for v in rest} <= {"agreed", "excused"}, rest


def test_regenerating_repairs_only_broken_files(fresh: Path) -> None:
    """Vectors of other models stay as they are, broken or not."""
    broken = ["dequant/q8_0.json", *(["tokens/stories260K.json"] if STORIES.exists() else [])]
    kept = {path: (fresh / path).read_bytes() for path in broken}
    for path in broken:
        (fresh / path).write_text("{}")
    before = {path: path.stat().st_mtime_ns for path in fresh.rglob("*.*")}
    assert regenerate(fresh) == [fresh / broken[0]]
    after = {path: path.stat().st_mtime_ns for path in fresh.rglob("*.*")}
    assert {path for path in after if after[path] != before.get(path)} == {fresh / broken[0]}
    assert [problem.path for problem in verify(fresh)] == broken[1:]
    for path, raw in kept.items():  # other tests use `fresh` too
        (fresh / path).write_bytes(raw)


@needs_stories
def test_regenerating_a_model_changes_only_its_files(tmp_path: Path) -> None:
    root = copied(tmp_path)
    kept = (root / "dequant/q8_0.json").read_bytes() + b" "
    (root / "dequant/q8_0.json").write_bytes(kept)
    (root / "tokens/stories260K.json").unlink()
    changed = {path.relative_to(root).as_posix() for path in regenerate(root, [STORIES])}
    assert "tokens/stories260K.json" in changed
    assert changed <= {f"{p}{s}" for p in STORIES_PATHS for s in (".json", ".safetensors")} | {NAME}
    assert (root / "dequant/q8_0.json").read_bytes() == kept


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("f32", "'f32' is a built-in model"),
        ("stories260K", "another model has vectors named 'stories260K'"),
        ("___", "no letter"),
    ],
)
def test_model_without_a_free_name_is_refused(name: str, match: str, tmp_path: Path) -> None:
    root, path = copied(tmp_path), tmp_path / f"{name}.gguf"
    write_llama(LlamaRecipe(seed=77, n_layer=1), path)
    with pytest.raises(BrokenGolden, match=match):
        regenerate(root, [path])
    assert verify(root) == []


def test_two_models_with_the_same_name_are_refused(tmp_path: Path) -> None:
    paths = [tmp_path / folder / "mine.gguf" for folder in "ab"]
    for seed, path in enumerate(paths):
        path.parent.mkdir()
        write_llama(LlamaRecipe(seed=seed, n_layer=1, vocabulary=False), path)
    with pytest.raises(BrokenGolden, match="the same name"):
        regenerate(tmp_path / "v1", paths)
    assert not (tmp_path / "v1").exists()


def test_a_model_without_vocabulary_has_logits_only(tmp_path: Path) -> None:
    path = tmp_path / "mute.gguf"
    write_llama(LlamaRecipe(seed=5, n_layer=1, vocabulary=False), path)
    root = tmp_path / "v1"
    names = {p.relative_to(root).as_posix() for p in regenerate(root, [path])}
    assert names == {"logits/mute.json", "logits/mute.safetensors", NAME}
    assert verify(root) == []


def test_logits_stay_within_their_bound_and_are_rewritten_beyond(tmp_path: Path) -> None:
    """One small logit is moved, as if another CPU had written the vectors."""
    path, root = tmp_path / "mute.gguf", tmp_path / "v1"
    write_llama(LlamaRecipe(seed=5, n_layer=1, vocabulary=False), path)
    regenerate(root, [path])
    tensors, said = root / "logits/mute.safetensors", list[str]()
    written, allowed = tensors.read_bytes(), json.loads((root / "logits/mute.json").read_text())
    for share in (0.9, 1.1):
        logits = parse_tensors(written, "mute")["logits"].copy()
        at = np.unravel_index(int(np.abs(logits).argmin()), logits.shape)
        logits[at] += share * allowed["tolerance"]["allowed"]
        moved = tensor_bytes({"logits": logits})
        tensors.write_bytes(moved)
        reseal(root)
        assert verify(root) == []
        changed = [p.name for p in regenerate(root, [path], said.append)]
        if share < 1:
            assert (changed, tensors.read_bytes()) == ([], moved)
        else:
            assert (changed, tensors.read_bytes()) == ([tensors.name, NAME], written)
    assert any("logits/mute is written anew: 1 of" in text for text in said)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"no model"])
def test_invalid_model_is_refused_and_nothing_is_written(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(BrokenGolden, match=r"bad\.gguf"):
        regenerate(tmp_path / "v1", [path])
    assert not (tmp_path / "v1").exists()


def test_hand_edited_manifest_is_not_overwritten(tmp_path: Path) -> None:
    root = copied(tmp_path)
    edit_json(root / NAME, lambda d: d["files"].pop())
    with pytest.raises(BrokenGolden, match="seal"):
        regenerate(root)
