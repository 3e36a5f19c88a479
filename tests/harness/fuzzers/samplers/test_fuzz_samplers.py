"""`fuzz samplers` finds wrong samplers and shrinks the questions. It accuses no honest sampler."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.gguf.split_files import open_model
from lockstep.engine.registry import import_members
from lockstep.engine.samplers.parts.vocabulary import TokenizerWords
from lockstep.engine.tokenizers.base import tokenizer_of
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.asking.session import LocalSession
from lockstep.harness.check.check import BadInput
from lockstep.harness.fuzzers.base import FuzzPlan
from lockstep.harness.fuzzers.samplers.cases import (
    TARGETS,
    draw_anew,
    has_finite_best,
    make_question,
    raw_question,
)
from lockstep.harness.fuzzers.samplers.fuzzer import SamplersFuzzer
from lockstep.harness.fuzzers.samplers.question import question_text, read_question
from lockstep.harness.fuzzers.samplers.shrink import keep_candidates, shrink_question, size_of
from lockstep.harness.honest.samplers import HONEST_SAMPLERS
from lockstep.harness.mutants.parts.wrong_samplers import WRONG_SAMPLERS
from lockstep.harness.records import EXACT, Answered, SampleRequest, Verdict
from lockstep.harness.samplers.judgement import judge_answer
from lockstep.harness.synth.builtin import BUILTIN_VOCABULARIES
from tests.fake_samplers import EndAlone
from tests.models import with_metadata

import_members("lockstep.harness.mutants")
HAS = frozenset(TARGETS)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vocabulary")
    return with_metadata(folder / "vocabulary.gguf", BUILTIN_VOCABULARIES["llama"])


def fuzz(target: str, engine: str, cases: int = 80, **given: Any) -> list[Verdict]:
    plan = FuzzPlan(targets=(target,), engine=engine, oracle="reference", cases=cases, **given)
    return list(SamplersFuzzer().run(plan, lambda target, text: None))


def diverged(verdicts: list[Verdict]) -> list[Verdict]:
    return [verdict for verdict in verdicts if verdict.status == "diverged"]


FAULTS = (
    *("top-p-drops-crossing", "top-k-one-more", "min-p-no-min-keep", "typical-bits", "temp-twice"),
    *("penalty-per-occurrence", "penalty-counts-prompt", "dry-one-late", "sigma-of-sample"),
    *("mirostat-never-learns", "adaptive-p-of-zeros", "bias-last-wins", "temp-first"),
)


@pytest.mark.parametrize("name", FAULTS)
def test_wrong_sampler_is_found_and_its_case_shrunk(name: str) -> None:
    cls = WRONG_SAMPLERS[f"mutant:{name}"]
    every = diverged(fuzz(cls.stage, cls.name))  # the case of a grammar may fail too
    found = [v for v in every if v.detail["sampler"] == cls.stage or name == "temp-first"]
    small = min(found, key=lambda verdict: (verdict.detail["candidates"], verdict.detail["stages"]))
    assert small.detail["candidates"] <= 8
    assert small.detail["stages"] <= 2


def test_wrong_grammar_is_found_and_reproduced() -> None:
    cls = WRONG_SAMPLERS["mutant:grammar-never-moves"]
    first = diverged(fuzz(cls.stage, cls.name, 6))[0]
    assert (first.detail["candidates"], first.detail["stages"]) == (1, 1)
    given = (first.detail["question"].encode(),)
    assert diverged(fuzz(cls.stage, cls.name, given=given))
    assert diverged(fuzz(cls.stage, "reference", given=given)) == []


def test_question_of_a_finding_reproduces_it() -> None:
    first = diverged(fuzz("top_p", "mutant:top-p-drops-crossing", 20))[0]
    given = (first.detail["question"].encode(),)
    (again,) = diverged(fuzz("top_p", "mutant:top-p-drops-crossing", given=given))
    assert again.detail["wrong"] == first.detail["wrong"]
    assert diverged(fuzz("top_p", "reference", given=given)) == []


def test_honest_samplers_are_not_accused(vocabulary: Path) -> None:
    words = TokenizerWords(tokenizer_of(open_model(vocabulary).metadata))
    classes = {"reference": Reference, **HONEST_SAMPLERS}
    sessions = {name: LocalSession(cls, vocabulary, EXACT) for name, cls in classes.items()}
    accused = []
    for target in TARGETS:
        for number in (1, 5, 8):  # the last case reads the vocabulary
            request = make_question(3, number, target, HAS, words)
            for name, session in sessions.items():
                outcome = session.ask("sample", request)
                assert isinstance(outcome, Answered), outcome
                if has_finite_best(request):
                    found = judge_answer(request, outcome.value, words).findings
                    accused += [(name, target, number) for _ in found]
    assert accused == []


def test_case_depends_only_on_seed_target_and_number(vocabulary: Path) -> None:
    words = TokenizerWords(tokenizer_of(open_model(vocabulary).metadata))
    texts = [question_text(make_question(1, 8, name, HAS, words)) for name in ("top_p", "min_p")]
    assert texts[0] == question_text(make_question(1, 8, "top_p", HAS, words))
    other = question_text(make_question(2, 8, "top_p", HAS, words))
    assert len({*texts, other}) == 3


@pytest.mark.parametrize("target", TARGETS)
def test_every_question_of_a_target_has_its_sampler(target: str, vocabulary: Path) -> None:
    words = TokenizerWords(tokenizer_of(open_model(vocabulary).metadata))
    for number in range(20):
        chain = make_question(0, number, target, HAS, words).chain
        assert target in [stage["sampler"] for stage in chain]


class Stubborn(Reference, name="fake-dies-of-nan"):
    """An engine with two samplers that fails on NaN."""

    def sample(self, request: SampleRequest) -> Any:
        if np.isnan(request.logits).any():
            raise RuntimeError("NaN")
        return super().sample(request)


def test_engine_that_fails_on_nan_is_found() -> None:
    found = [v for v in fuzz("top_k", "fake-dies-of-nan", 150) if v.status == "crashed"]
    assert len(found) == 1
    assert found[0].detail["candidates"] <= 8


def test_engine_that_shows_only_the_last_list_is_judged() -> None:
    verdicts = fuzz("top_p", EndAlone.name, 10)
    assert [v.status for v in verdicts] == ["agreed"]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"chain":[],"logits":[[1]],"accepted":[[]]}',
        b'{"chain":[{"sampler":"greedy"}],"logits":[[1],[1,2]],"accepted":[[],[]]}',
        b'{"chain":[{"sampler":"greedy"}],"logits":[["x"]],"accepted":[[]]}',
        b'{"chain":[{"sampler":"nothing"}],"logits":[[1]],"accepted":[[]]}',
        b'{"chain":[{"sampler":"top_k","k":"x"}],"logits":[[1]],"accepted":[[]]}',
        b'{"chain":[{"sampler":"greedy"}],"logits":[[1]],"accepted":[]}',
    ],
)
def test_malformed_question_is_refused(text: bytes) -> None:
    with pytest.raises(BadInput):
        read_question(text)


def test_question_with_infinities_survives_a_round_trip() -> None:
    logits = np.array([[1.5, -np.inf, np.inf]], np.float32)
    chain = ({"sampler": "logit_bias", "biases": ((1, -np.inf),)}, {"sampler": "dist", "seed": 3})
    request = raw_question(chain, logits)
    again = read_question(question_text(request).encode())
    assert again.chain == chain
    assert question_text(again) == question_text(request)
    assert np.array_equal(again.logits, logits)


def test_removed_candidates_are_removed_in_every_part_of_a_question() -> None:
    request = SampleRequest(
        chain=({"sampler": "logit_bias", "biases": ((0, 1.0), (2, 2.0))},),
        logits=np.array([[3, 4, 5]], np.float32),
        accepted=((0, 2, 1),),
        draws=np.full((1, 1), np.nan),
    )
    small = keep_candidates(request, [1, 2])
    assert small.chain[0]["biases"] == ((1, 2.0),)
    assert small.accepted == ((1, 0),)
    assert small.logits.tolist() == [[4, 5]]


def test_shrinking_never_makes_a_question_larger(vocabulary: Path) -> None:
    words = TokenizerWords(tokenizer_of(open_model(vocabulary).metadata))
    request = make_question(0, 1, "dist", HAS, words)
    small = draw_anew(shrink_question(request, lambda other: True, budget=200), words)
    assert size_of(small) < size_of(request)
    assert (len(small.logits), len(small.chain)) == (1, 1)
