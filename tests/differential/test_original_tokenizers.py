"""llama.cpp beside the libraries of its tokenizers: the known differences, and no others."""

import importlib.util
import unicodedata
from pathlib import Path

import pytest

from golden.fetch import NAMES, WITH_CASES, own_cases
from harness.fuzzers.base import FuzzPlan, fuzzer_named
from harness.fuzzers.tokens import ORIGINALS
from harness.records import EXACT, Answered
from harness.runner import Runner
from harness.suites._originals import Original, known_originals
from tests.vocabularies import vocabulary_or_skip

KNOWN = known_originals()
BY_SENTENCEPIECE = ("baichuan", "llama-spm", "nomic-bert-moe", "phi-3")
LIBRARY = {name: "sentencepiece" if name in BY_SENTENCEPIECE else "tokenizers" for name in NAMES}
NOT_ITS_ORIGINALS = {"qwen35": 3}  # cases that llama.cpp has written without the original's NFC
SAME = [name for name in NAMES if name not in {known.vocabulary for known in KNOWN}]


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the processes of a test run have in common."""
    return tmp_path_factory.getbasetemp().parent


def needs(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed (extra `originals`): it was not compared with it")


def asked(engine: str, path: Path, texts: list[bytes], parse: bool = False) -> list[list[int]]:
    with Runner().open(engine, path, EXACT) as session:
        outcome = session.ask("tokenize", texts, add_special=False, parse_special=parse)
    assert isinstance(outcome, Answered), outcome
    return [list(ids) for ids in outcome.value]


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.id)
def test_a_known_difference_is_still_one_and_our_engine_is_on_llama_cpps_side(
    known: Original, shared: Path
) -> None:
    needs(known.original)
    path = vocabulary_or_skip(known.vocabulary, shared)
    ours, llama_cpp, theirs = (
        asked(engine, path, [known.text], known.parse_special)[0]
        for engine in ("reference", "llama.cpp", known.original)
    )
    assert tuple(llama_cpp) == tuple(ours) == known.llama_cpp
    assert tuple(theirs) == known.theirs


@pytest.mark.parametrize("name", WITH_CASES)
def test_llama_cpps_own_cases_are_those_of_the_original(name: str, shared: Path) -> None:
    """So the original is rightly made from the file: these ids were written with it."""
    needs(LIBRARY[name])
    path = vocabulary_or_skip(name, shared)
    cases = own_cases(path)
    found = asked(LIBRARY[name], path, [text for text, _ in cases])
    wrong = [
        text.decode() for (text, ids), theirs in zip(cases, found, strict=True) if ids != theirs
    ]
    assert len(wrong) == NOT_ITS_ORIGINALS.get(name, 0)
    assert not any(unicodedata.is_normalized("NFC", text) for text in wrong)


@pytest.mark.parametrize("name", SAME)
def test_where_no_difference_is_known_none_is_found(name: str, shared: Path) -> None:
    needs(LIBRARY[name])
    path = vocabulary_or_skip(name, shared)
    plan = FuzzPlan(targets=(str(path),), oracle=LIBRARY[name], cases=400, seed=6)
    (verdict,) = fuzzer_named("tokens").run(plan, lambda target, text: None)
    assert verdict.status == "agreed", verdict
    assert verdict.detail["texts"] == 400


@pytest.mark.parametrize("name", ["qwen2", "bert-bge"])
def test_where_a_difference_is_known_the_fuzzer_finds_one(name: str, shared: Path) -> None:
    needs(LIBRARY[name])
    path = vocabulary_or_skip(name, shared)
    plan = FuzzPlan(targets=(str(path),), oracle=LIBRARY[name], cases=400, seed=6)
    found = list(fuzzer_named("tokens").run(plan, lambda target, text: None))
    assert {v.status for v in found} == {"diverged"}
    assert all(bytes.fromhex(v.detail["input"]).decode() for v in found)


def test_every_original_is_an_engine_that_can_be_asked() -> None:
    assert set(LIBRARY.values()) == set(ORIGINALS)
    assert {known.original for known in KNOWN} == set(ORIGINALS)
