"""Our engine passes every golden without llama.cpp; wrong engines fail."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.errors import Unsupported
from lockstep.engine.ops.reference import ReferenceOps as PlainOps
from lockstep.golden.load import documents, load_vectors
from lockstep.golden.manifest import read_manifest
from lockstep.golden.models import write_models
from lockstep.golden.replay import replay, stem
from lockstep.golden.store import DEFAULT_ROOT, BrokenGolden
from lockstep.golden.suites.base import AskedEngine, Golden, Vectors, Verdicts
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.context.runner import LocalSession
from lockstep.harness.context.suite import NoAnswer
from lockstep.harness.records import EXACT, Verdict
from lockstep.harness.report.header import sha256_of
from tests.golden.folders import (
    FETCHED_PATHS,
    STORIES,
    STORIES_PATHS,
    copied,
    edit_json,
    needs_stories,
    reseal,
)

ENTRIES = {entry.path: entry for entry in read_manifest(DEFAULT_ROOT)}
PATHS = [stem(entry) for entry in documents(list(ENTRIES.values()))]
OF_RECIPES = [path for path in PATHS if path not in (*STORIES_PATHS, *FETCHED_PATHS)]


class NoConversion(Reference):
    """An engine that multiplies unconverted activations; it is not registered."""

    name = "no-conversion"

    def make_ops(self) -> PlainOps:
        return PlainOps()


class OffByOne(Reference):
    name = "off-by-one"

    def tokenize(
        self, texts: Sequence[bytes], *, add_special: bool = True, parse_special: bool = False
    ) -> list[list[int]]:
        runs = super().tokenize(texts, add_special=add_special, parse_special=parse_special)
        runs[-1][-1] += 1
        return runs

    def detokenize(
        self, ids: Sequence[Sequence[int]], *, remove_special: bool, unparse_special: bool
    ) -> list[bytes]:
        texts = super().detokenize(
            ids, remove_special=remove_special, unparse_special=unparse_special
        )
        return [*texts[:-1], texts[-1] + b"!"]

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        ids = super().greedy(prompt, n)
        return [*ids[:-1], ids[-1] ^ 1]


class Forgetful(OffByOne):
    """An engine whose answers are too short."""

    name = "forgetful"

    def tokenize(
        self, texts: Sequence[bytes], *, add_special: bool = True, parse_special: bool = False
    ) -> list[list[int]]:
        return [[1]]

    def detokenize(
        self, ids: Sequence[Sequence[int]], *, remove_special: bool, unparse_special: bool
    ) -> list[bytes]:
        return []

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        return super().greedy(prompt, n)[:-1]

    def dequantize(self, type_name: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        return super().dequantize(type_name, raw)[:-1]


class PositiveZero(Reference):
    name = "positive-zero"

    def dequantize(self, type_name: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        return super().dequantize(type_name, raw) + np.float32(0)


class SwappedNibbles(Reference):
    name = "swapped-nibbles"

    def dequantize(self, type_name: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        blocks = super().dequantize(type_name, raw).reshape(-1, 2, 16)
        return blocks[:, ::-1].reshape(-1)


class Deaf(Reference):
    name = "deaf"

    def dequantize(self, type_name: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        raise Unsupported("deaf")


def vectors_of(path: str, root: Path = DEFAULT_ROOT) -> Vectors:
    entries = {entry.path: entry for entry in read_manifest(root)}
    return load_vectors(root, entries[f"{path}.json"], entries)


def held(engine: type[Reference], path: str, models: Path) -> list[Verdict]:
    """Replay one golden on an unregistered class of engine."""
    vectors = vectors_of(path)
    row = vectors.document.get("model")
    model = None if row is None else models / f"{row['name']}.gguf"
    verdict = Verdicts(suite="golden", case=path, repro="again")
    with LocalSession(engine, model, EXACT) as session:
        ask = AskedEngine(engine=engine.name, session=session)
        return list(Golden.member(path.split("/")[0])().replay(vectors, ask, verdict))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder


def test_our_engine_replays_the_vectors_of_all_operations() -> None:
    paths = [path for path in PATHS if path.startswith("ops/")]
    verdicts = list(replay(only=paths))
    assert len(verdicts) == len(paths)
    assert {v.status for v in verdicts} == {"agreed"}, verdicts


@pytest.mark.parametrize("path", [path for path in OF_RECIPES if not path.startswith("ops/")])
def test_our_engine_replays_the_goldens_of_built_in_models(path: str) -> None:
    verdicts = list(replay(only=[path]))
    assert verdicts
    assert {v.status for v in verdicts} == {"agreed"}, verdicts


@needs_stories
@pytest.mark.parametrize("path", STORIES_PATHS)
def test_our_engine_replays_the_goldens_of_stories260k(path: str) -> None:
    verdicts = list(replay(only=[path], models=[STORIES]))
    assert verdicts
    assert {v.status for v in verdicts} == {"agreed"}, verdicts


def test_golden_without_its_model_is_not_compared() -> None:
    verdicts = list(replay(only=STORIES_PATHS))
    assert [v.status for v in verdicts] == ["not-compared"] * 2
    assert all("stories260K" in v.summary and "sha256" in v.summary for v in verdicts)


def test_replaying_does_not_import_llama_cpp() -> None:
    program = (
        "import sys\n"
        "sys.modules['llama_cpp'] = sys.modules['gguf'] = None\n"
        "from lockstep.golden.replay import replay\n"
        "from lockstep.golden.verify import verify\n"
        "assert verify() == []\n"
        "found = {v.status for v in replay(only=['tokens/f32', 'dequant/q8_0', 'logits/f32'])}\n"
        "assert found == {'agreed'}, found\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# the logits of other engines are right within the noise, so only the trace shows them
SEEN_IN_LOGITS = [
    f"mutant:{name}"
    for name in (
        *("cache-keeps-last", "column-major", "kv-head-modulo", "last-kv-head-dropped"),
        *("missing-scale", "q8-0-unsigned", "rope-half-split", "silu-without-gate"),
        *("softmax-nan", "stale-norm"),
    )
]


@pytest.mark.parametrize("name", SEEN_IN_LOGITS)
def test_a_wrong_engine_fails_on_logits(name: str) -> None:
    model = "q8_0" if name == "mutant:q8-0-unsigned" else "f32"
    verdicts = list(replay(engine=name, only=[f"logits/{model}"]))
    assert verdicts[0].status == "diverged"
    assert name in verdicts[0].repro


def test_wrong_decoder_fails_only_on_its_blocks() -> None:
    wrong, right = (
        list(replay(engine="mutant:q8-0-unsigned", only=[f"dequant/{kind}"]))
        for kind in ("q8_0", "q4_0")
    )
    assert [v.status for v in wrong] == ["diverged"]
    assert [v.status for v in right] == ["agreed"]


@pytest.mark.parametrize(
    ("engine", "path", "n"),
    [
        (OffByOne, "tokens/f32", 12),
        (OffByOne, "logits/f32", 1),
        (OffByOne, "dequant/q8_0", 0),
        (PositiveZero, "dequant/q8_0", 1),
        (PositiveZero, "dequant/q4_0", 1),
        (SwappedNibbles, "dequant/q4_0", 1),
    ],
)
def test_smallest_mistake_is_located(
    engine: type[Reference], path: str, n: int, models: Path
) -> None:
    verdicts = held(engine, path, models)
    assert len([v for v in verdicts if v.status == "diverged"]) == n, verdicts


@pytest.mark.parametrize("path", [path for path in OF_RECIPES if path.startswith("logits/")])
def test_engine_with_unconverted_activations_is_within_the_bound(path: str, models: Path) -> None:
    verdicts = held(NoConversion, path, models)
    assert {v.status for v in verdicts} <= {"agreed", "excused"}, verdicts


@pytest.mark.parametrize("path", ["tokens/f32", "logits/f32"])
def test_too_short_answer_is_malformed(path: str, models: Path) -> None:
    """The other answers of such an engine are still compared."""
    statuses = [v.status for v in held(Forgetful, path, models)]
    assert "malformed" in statuses
    assert set(statuses) <= {"malformed", "agreed"}


def test_too_few_weights_are_malformed(models: Path) -> None:
    with pytest.raises(NoAnswer) as refusal:
        held(Forgetful, "dequant/q8_0", models)
    assert refusal.value.status == "malformed"


def test_an_engine_without_an_answer_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Reference.family, "deaf", Deaf)
    assert [v.status for v in replay(engine="deaf", only=["dequant/q8_0"])] == ["not-compared"]


def test_an_edited_golden_is_not_replayed(tmp_path: Path) -> None:
    root = copied(tmp_path)
    edit_json(root / "dequant/q8_0.json", lambda d: d["blocks"][0].update(id="mine"))
    with pytest.raises(BrokenGolden, match="changed by hand"):
        list(replay(root, only=["dequant/q8_0"]))


def test_unknown_names_are_refused_with_the_choices() -> None:
    with pytest.raises(BrokenGolden, match=r"no golden 'logits/f31' \(near: .*logits/f32"):
        list(replay(only=["logits/f31"]))
    with pytest.raises(Unsupported, match="no engine named 'nobody'"):
        list(replay(engine="nobody", only=["dequant/q8_0"]))


def test_recipe_for_another_model_is_refused(tmp_path: Path) -> None:
    root = copied(tmp_path)
    edit_json(root / "logits/f32.json", lambda d: d["model"]["recipe"].update(seed=99))
    reseal(root)
    with pytest.raises(BrokenGolden, match="no longer makes the model"):
        list(replay(root, only=["logits/f32"]))


@pytest.mark.parametrize("field", [{"n_embd": 1 << 20}, {"unheard_of": 1}, {"n_head": 3}])
def test_recipe_without_a_model_is_refused(field: dict[str, int], tmp_path: Path) -> None:
    root = copied(tmp_path)
    edit_json(root / "logits/f32.json", lambda d: d["model"]["recipe"].update(field))
    reseal(root)
    with pytest.raises(BrokenGolden, match="the recipe of f32"):
        list(replay(root, only=["logits/f32"]))


def test_the_models_of_all_recipes_can_be_written(models: Path) -> None:
    hashes = {sha256_of(path) for path in models.glob("*.gguf")}
    assert hashes >= {vectors_of(path).document["model"]["sha256"] for path in OF_RECIPES
                      if path.startswith("logits/")}  # fmt: skip
