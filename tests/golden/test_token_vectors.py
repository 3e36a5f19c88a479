"""The vectors of vocabularies: our engine passes them, wrong engines fail, and they are
reproducible."""

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.golden import fetch
from lockstep.golden.fetch import NAMES, WITH_CASES
from lockstep.golden.generate import regenerate
from lockstep.golden.load import load_vectors
from lockstep.golden.manifest import read_manifest
from lockstep.golden.replay import replay
from lockstep.golden.store import DEFAULT_ROOT, BrokenGolden
from lockstep.golden.suites.base import AskedEngine, Golden, Verdicts
from lockstep.golden.suites.parts.token_cases import token_cases
from lockstep.golden.suites.vocabulary import GLUED, WAYS, GoldenVocabulary
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.context.runner import LocalSession
from lockstep.harness.mutants.tokenizers import WRONG, WrongTokenizer
from lockstep.harness.records import EXACT, EngineInfo, Verdict
from lockstep.harness.report.header import sha256_of
from lockstep.harness.synth.builtin import BUILTIN_VOCABULARIES
from lockstep.harness.synth.llama import write_llama
from tests.golden.folders import all_copied, edit_json, needs_oracle, reseal
from tests.vocabularies import vocabulary_or_skip

ENTRIES = {entry.path: entry for entry in read_manifest(DEFAULT_ROOT)}
KINDS = [kind for kind in BUILTIN_VOCABULARIES if kind != "none"]
ALL = [*NAMES, *(f"synth-{kind}" for kind in KINDS)]


def document(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEFAULT_ROOT / f"tokens/{name}.json").read_text())
    return found


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all processes of a test run share."""
    return tmp_path_factory.getbasetemp().parent


def held(engine: type[Reference], kind: str, folder: Path) -> list[Verdict]:
    """Replay one golden on an unregistered class of engine."""
    path = folder / f"{kind}.gguf"
    write_llama(BUILTIN_VOCABULARIES[kind], path)
    vectors = load_vectors(DEFAULT_ROOT, ENTRIES[f"tokens/synth-{kind}.json"], ENTRIES)
    verdict = Verdicts(suite="golden", case=kind, repro="again")
    with LocalSession(engine, path, EXACT) as session:
        ask = AskedEngine(engine=engine.name, session=session, path=path)
        return list(Golden.member("vocabulary")().replay(vectors, ask, verdict))


# --- contents -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_vocabulary_has_at_least_200_named_cases_and_glued_cases(name: str) -> None:
    cases = {row["id"]: row for row in document(name)["cases"]}
    ours = token_cases()
    assert len(ours) > 400
    assert {case: base64.b64decode(cases[case]["base64"]) for case in ours} == ours
    assert len([case for case in cases if case.startswith("glued-")]) == GLUED
    assert len([case for case in cases if case.startswith("own-")]) >= 3


@pytest.mark.parametrize("name", NAMES)
def test_cases_of_llama_cpp_are_stored_by_hash_without_text(name: str) -> None:
    rows = document(name).get("llama_cpp", [])
    assert len(rows) == {"qwen35": 50}.get(name, 46 if name in WITH_CASES else 0)
    assert all(set(row) == {"id", "sha256", "ids", "back"} for row in rows)


def test_published_ids_of_gemma_4_are_reproduced() -> None:
    """The ids were measured with Google's tokenizer of Gemma 3."""
    expected = [
        [17361, 961, 78658, 563, 614, 26407, 3207, 236761],
        *([29104], [23391], [138, 23391], [139, 23391], [57364, 167089], [167, 145, 23391]),
    ]
    cases = {row["id"]: row["ids"]["plain"] for row in document("gemma-4")["cases"]}
    assert [cases[f"noted-{i:02d}"] for i in range(len(expected))] == expected


def test_named_cases_contain_their_texts() -> None:
    texts = token_cases()
    assert texts["spaces-40"] == b" " * 40
    assert texts["bytes-overlong-slash-2"] == b"\xc0\xaf"
    assert b"\0" in texts["control-nul-inside"]
    assert max(map(len, texts.values())) >= 1000
    assert not any(0xF4 < byte < 0xF8 for text in texts.values() for byte in text)
    for part in ("\u200d", "\u0301", "\u202e", "\ue000", "שלום", "你好", "</s>", "'ll", "\t\t"):
        assert any(part.encode() in text for text in texts.values()), part


def test_the_vectors_of_tokens_stay_small() -> None:
    sizes = [entry.bytes for entry in ENTRIES.values() if entry.kind == "vocabulary"]
    assert len(sizes) == len(ALL)
    assert sum(sizes) < 5 << 20
    assert max(sizes) < 256 << 10


def test_flags_change_the_ids_of_a_text_with_special_tokens() -> None:
    row = {r["id"]: r for r in document("llama-bpe")["cases"]}["own-4-0"]
    assert set(row["ids"]) == set(WAYS)
    assert row["ids"]["parsed"] != row["ids"]["plain"]
    assert row["ids"]["full"] != row["ids"]["parsed"]


# --- replayed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_our_engine_matches_llama_cpp_on_its_own_vocabularies(name: str, shared: Path) -> None:
    path = vocabulary_or_skip(name, shared)
    verdicts = list(replay(only=[f"tokens/{name}"], models=[path]))
    assert len(verdicts) == (9 if name in WITH_CASES else 7)
    assert {v.status for v in verdicts} == {"agreed"}, verdicts


def test_a_vocabulary_that_was_not_given_is_not_compared() -> None:
    (verdict,) = replay(only=["tokens/gpt-2"])
    assert verdict.status == "not-compared"
    assert document("gpt-2")["model"]["sha256"] in verdict.summary


def test_cases_of_llama_cpp_are_not_compared_without_texts(tmp_path: Path, shared: Path) -> None:
    alone = tmp_path / "ggml-vocab-refact.gguf"
    alone.symlink_to(vocabulary_or_skip("refact", shared))
    verdicts = list(replay(only=["tokens/refact"], models=[alone]))
    assert [v.status for v in verdicts].count("not-compared") == 1
    assert "46 of llama.cpp's own cases" in verdicts[-1].summary


@pytest.mark.parametrize("row", WRONG.values(), ids=list(WRONG))
def test_a_wrong_tokenizer_fails_on_the_vectors(row: type[WrongTokenizer], tmp_path: Path) -> None:
    verdicts = held(row, row.shows_on, tmp_path)
    assert "diverged" in {v.status for v in verdicts}


@pytest.mark.parametrize("kind", KINDS)
def test_reference_passes_the_vectors(kind: str, tmp_path: Path) -> None:
    assert {v.status for v in held(Reference, kind, tmp_path)} == {"agreed"}


class Lossy(Reference):
    """An engine in a language whose strings are always UTF-8."""

    name = "lossy"
    says_so = True

    def describe(self) -> EngineInfo:
        return replace(super().describe(), utf8_only=self.says_so)

    def tokenize(self, texts: Sequence[bytes], **flags: bool) -> list[list[int]]:
        return super().tokenize([self.lossy(text) for text in texts], **flags)

    def detokenize(self, ids: Sequence[Sequence[int]], **flags: bool) -> list[bytes]:
        return [self.lossy(text) for text in super().detokenize(ids, **flags)]

    def lossy(self, text: bytes) -> bytes:
        return text.decode(errors="replace").encode()


class SilentlyLossy(Lossy):
    name = "silently-lossy"
    says_so = False


def test_texts_that_an_engine_cannot_take_are_skipped_and_counted(
    tmp_path: Path,
) -> None:
    verdicts = held(Lossy, "gpt2", tmp_path)
    assert {v.status for v in verdicts} == {"agreed"}
    assert all("that are not UTF-8 were not compared" in v.summary for v in verdicts[-2:])
    assert "diverged" in {v.status for v in held(SilentlyLossy, "gpt2", tmp_path)}


# --- edited -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda d: d["cases"][5].update(text="mine"), "text and base64"),
        (lambda d: d["cases"][5].update(id="empty"), "same id"),
        (lambda d: d["cases"][5]["ids"].update(parsed=[1]), "ids are kept under"),
        (lambda d: d["pieces"]["plain"].pop(), "differ in length"),
        (lambda d: d["cases"][5]["ids"].update(plain=[639, 638, 637, 2, 3, 600]), "has no piece"),
        (lambda d: d["ways"]["full"].update(add_special=False), "the ways are not those"),
        (lambda d: d["cases"][5].update(base64="A"), "does not match"),
    ],
)
def test_vectors_that_contradict_themselves_are_refused(
    edit: Any, says: str, tmp_path: Path
) -> None:
    root = all_copied(tmp_path)
    edit_json(root / "tokens/synth-rwkv.json", edit)
    reseal(root)
    with pytest.raises(BrokenGolden, match=says):
        list(replay(root, only=["tokens/synth-rwkv"]))


def test_diff_names_cases() -> None:
    vectors = load_vectors(DEFAULT_ROOT, ENTRIES["tokens/synth-gpt2.json"], ENTRIES)
    cases = GoldenVocabulary().cases(vectors)
    assert cases["spaces-3: plain"] == [*cases["spaces-3: plain"]]
    assert {"spaces-3: input", "special-00: parsed", "glued-00: full", "token 5"} <= set(cases)


# --- made again ---------------------------------------------------------------------------------


@needs_oracle
@pytest.mark.parametrize("name", ["gpt-2", "llama-spm", "bert-bge"])
def test_vectors_of_a_vocabulary_are_reproduced_byte_for_byte(
    name: str, tmp_path: Path, shared: Path
) -> None:
    path = vocabulary_or_skip(name, shared)
    root = all_copied(tmp_path)
    (root / f"tokens/{name}.json").unlink()
    changed = regenerate(root, [path])
    assert [p.name for p in changed] == [f"{name}.json"]
    made = (root / f"tokens/{name}.json").read_bytes()
    assert made == (DEFAULT_ROOT / f"tokens/{name}.json").read_bytes()


def test_named_models_are_the_fetched_files(shared: Path) -> None:
    for name in NAMES:
        path = vocabulary_or_skip(name, shared)
        assert document(name)["model"]["sha256"] == sha256_of(path)
        assert path == fetch.vocabulary(path.parent, name)
