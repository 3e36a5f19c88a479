"""llama.cpp's tokenizers compared with their original libraries: only the known differences
occur."""

import importlib.util
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lockstep.golden.fetch import NAMES, WITH_CASES, own_cases
from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.fuzzers.base import FuzzPlan, fuzzer_named
from lockstep.harness.fuzzers.tokens.fuzzer import ORIGINALS
from lockstep.harness.records import EXACT, Answered
from lockstep.harness.suites.parts.originals import known_originals
from tests.vocabularies import vocabulary_or_skip

KNOWN = known_originals()
BY_SENTENCEPIECE = ("baichuan", "llama-spm", "nomic-bert-moe", "phi-3")
LIBRARY = {name: "sentencepiece" if name in BY_SENTENCEPIECE else "tokenizers" for name in NAMES}
NOT_ITS_ORIGINALS = {"qwen35": 3}  # number of cases in which llama.cpp lacks the original's NFC
WITH_KNOWN = sorted({known.vocabulary for known in KNOWN})
SAME = [name for name in NAMES if name not in WITH_KNOWN]
# these load slowly; `fuzz tokens --oracle tokenizers` tests them
LARGE = ("llama-bpe", "deepseek-llm")


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all processes of a test run share."""
    return tmp_path_factory.getbasetemp().parent


def needs(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed (extra `originals`): nothing was compared with it")


def asked(session: Session, texts: list[bytes], parse: bool = False) -> list[tuple[int, ...]]:
    outcome = session.ask("tokenize", texts, add_special=False, parse_special=parse)
    assert isinstance(outcome, Answered), outcome
    return [tuple(ids) for ids in outcome.value]


@dataclass(frozen=True)
class Original:
    """An original library with its tokenizer, loaded from a vocabulary's file."""

    name: str
    path: Path
    session: Session


@pytest.fixture(scope="module")
def original(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Original]:
    """Make the original once for all tests, because making it takes seconds."""
    name: str = request.param
    needs(LIBRARY[name])
    path = vocabulary_or_skip(name, tmp_path_factory.getbasetemp().parent)
    with Runner().open(LIBRARY[name], path, EXACT) as session:
        yield Original(name, path, session)


@pytest.mark.parametrize("original", WITH_KNOWN, indirect=True)
def test_known_differences_persist_and_our_engine_agrees_with_llama_cpp(
    original: Original,
) -> None:
    mine = [known for known in KNOWN if known.vocabulary == original.name]
    for known in mine:
        (ids,) = asked(original.session, [known.text], known.parse_special)
        assert ids == known.theirs, known.id
    for engine in ("reference", "llama.cpp"):
        with Runner().open(engine, original.path, EXACT) as session:
            for known in mine:
                (ids,) = asked(session, [known.text], known.parse_special)
                assert ids == known.llama_cpp, (engine, known.id)


@pytest.mark.parametrize("original", [n for n in WITH_KNOWN if n in WITH_CASES], indirect=True)
def test_cases_of_llama_cpp_agree_with_the_original(original: Original) -> None:
    """The original made these ids, so the conversion of the file is right."""
    cases = own_cases(original.path)
    found = asked(original.session, [text for text, _ in cases])
    wrong = [
        text.decode()
        for (text, ids), theirs in zip(cases, found, strict=True)
        if tuple(ids) != theirs
    ]
    assert len(wrong) == NOT_ITS_ORIGINALS.get(original.name, 0)
    assert not any(unicodedata.is_normalized("NFC", text) for text in wrong)


@pytest.mark.parametrize("name", [name for name in SAME if name not in LARGE])
def test_tokenizer_without_known_differences_agrees(name: str, shared: Path) -> None:
    needs(LIBRARY[name])
    path = vocabulary_or_skip(name, shared)
    plan = FuzzPlan(targets=(str(path),), oracle=LIBRARY[name], cases=400, seed=6)
    (verdict,) = fuzzer_named("tokens").run(plan, lambda target, text: None)
    assert verdict.status == "agreed", verdict
    assert verdict.detail["texts"] == 400


def test_tokenizer_with_a_known_difference_diverges(shared: Path) -> None:
    needs(LIBRARY["qwen2"])
    path = vocabulary_or_skip("qwen2", shared)
    plan = FuzzPlan(targets=(str(path),), oracle=LIBRARY["qwen2"], cases=400, seed=6)
    found = list(fuzzer_named("tokens").run(plan, lambda target, text: None))
    assert {v.status for v in found} == {"diverged"}
    assert all(bytes.fromhex(v.detail["input"]).decode() for v in found)


def test_every_original_can_be_used_as_an_engine() -> None:
    assert set(LIBRARY.values()) == set(ORIGINALS)
    assert {known.original for known in KNOWN} == set(ORIGINALS)
    assert all(known.original == LIBRARY[known.vocabulary] for known in KNOWN)
