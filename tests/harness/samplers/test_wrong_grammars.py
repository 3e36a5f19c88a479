"""Every wrong grammar is found, on a vocabulary that cuts characters. No honest grammar is
accused."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from lockstep.engine.gguf.split_files import open_model
from lockstep.engine.registry import import_members
from lockstep.engine.samplers.parts.vocabulary import TokenizerWords
from lockstep.engine.tokenizers.base import tokenizer_of
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.asking.session import LocalSession
from lockstep.harness.honest.grammars import HONEST_GRAMMARS
from lockstep.harness.mutants.parts.wrong_samplers import WRONG_SAMPLERS
from lockstep.harness.records import EXACT, Answered
from lockstep.harness.samplers.cases import CaseLimits, SampleCase, grammar_cases
from lockstep.harness.samplers.grammars import READING, bad_grammars, is_open
from lockstep.harness.samplers.judgement import StageFinding, judge_answer
from lockstep.harness.synth.builtin import BUILTIN_VOCABULARIES
from tests.models import with_metadata

import_members("lockstep.harness.mutants")
WRONG = [name for name, cls in WRONG_SAMPLERS.items() if cls.stage in READING]
OPEN = "mutant:grammar-open-on-error"  # invalid grammars find it


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vocabulary")
    return with_metadata(folder / "vocabulary.gguf", BUILTIN_VOCABULARIES["llama"])


@cache
def cases_of(path: Path) -> tuple[TokenizerWords, list[SampleCase]]:
    words = TokenizerWords(tokenizer_of(open_model(path).metadata))
    limits = CaseLimits(samplers=frozenset((*READING, "dist")), words=words, kinds=("random",))
    return words, list(grammar_cases(0, limits))


def findings(cls: type[Reference], path: Path) -> Iterator[StageFinding]:
    words, cases = cases_of(path)
    session = LocalSession(cls, path, EXACT)
    for case in cases:
        outcome = session.ask("sample", case.request)
        assert isinstance(outcome, Answered), outcome
        yield from judge_answer(case.request, outcome.value, words).unexplained


@pytest.mark.parametrize("name", [name for name in WRONG if name != OPEN])
def test_wrong_grammar_is_found_at_its_stage(name: str, vocabulary: Path) -> None:
    cls = WRONG_SAMPLERS[name]
    first = next(findings(cls, vocabulary), None)
    assert first is not None
    assert first.sampler == cls.stage


@pytest.mark.parametrize("name", [*HONEST_GRAMMARS, "reference"])
def test_honest_grammar_is_not_accused(name: str, vocabulary: Path) -> None:
    assert list(findings(HONEST_GRAMMARS.get(name, Reference), vocabulary)) == []


@pytest.mark.parametrize("name", [OPEN, "reference"])
def test_invalid_grammar_that_forbids_nothing_is_found(name: str, vocabulary: Path) -> None:
    session = LocalSession(WRONG_SAMPLERS.get(name, Reference), vocabulary, EXACT)
    for request in bad_grammars(640).values():
        outcome = session.ask("sample", request)
        assert (isinstance(outcome, Answered) and is_open(outcome.value)) is (name == OPEN)


def test_wrong_grammars_are_many() -> None:
    assert len(WRONG) >= 9
    assert len(HONEST_GRAMMARS) >= 2
