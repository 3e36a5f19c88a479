"""Sampler vectors find every wrong sampler, accuse no honest one, and avoid thresholds."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.registry import import_members
from lockstep.engine.samplers.parts.candidates import CandidateList
from lockstep.engine.samplers.parts.chain import make_chain
from lockstep.engine.samplers.parts.constructors import BY_SAMPLER
from lockstep.golden.store import DEFAULT_ROOT
from lockstep.golden.suites.base import AskedEngine, Vectors
from lockstep.golden.suites.parts.sampler_cases import alone, stage
from lockstep.golden.suites.parts.sampler_compare import stage_difference
from lockstep.golden.suites.parts.sampler_margins import margin_of
from lockstep.golden.suites.samplers import CLEAR, DOCUMENTS, GoldenSamplers, Unclear, try_case
from lockstep.harness.adapters.parts.sampled_lists import SampledList
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.asking.session import LocalSession
from lockstep.harness.honest.samplers import HONEST_SAMPLERS
from lockstep.harness.mutants.parts.wrong_samplers import WRONG_SAMPLERS
from lockstep.harness.records import EXACT
from lockstep.harness.samplers.grammars import READING
from lockstep.harness.synth.builtin import BUILTIN_VOCABULARIES
from tests.models import with_metadata

import_members("lockstep.harness.mutants")


@cache
def vectors_of(name: str) -> Vectors:
    path = DEFAULT_ROOT / "samplers" / f"{name}.json"
    return Vectors(document=json.loads(path.read_text()))


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vocabulary")
    return with_metadata(folder / "vocabulary.gguf", BUILTIN_VOCABULARIES["llama"])


def wrong_documents(cls: type[Reference], model: Path) -> list[str]:
    ask = AskedEngine(engine=cls.name, session=LocalSession(cls, model, EXACT))
    golden = GoldenSamplers()
    return [name for name in DOCUMENTS if next(golden.differences(vectors_of(name), ask), None)]


def test_every_sampler_has_vectors() -> None:
    assert {*DOCUMENTS} == {*BY_SAMPLER, "five-stages", "chains"} - {*READING}
    files = {path.stem for path in (DEFAULT_ROOT / "samplers").glob("*.json")}
    assert files == {*DOCUMENTS}
    assert sum(p.stat().st_size for p in (DEFAULT_ROOT / "samplers").iterdir()) < 2 << 20


@pytest.mark.parametrize("name", [n for n, c in WRONG_SAMPLERS.items() if c.stage not in READING])
def test_wrong_sampler_fails_vectors_of_its_stage(name: str, vocabulary: Path) -> None:
    found = wrong_documents(WRONG_SAMPLERS[name], vocabulary)
    assert {WRONG_SAMPLERS[name].stage, "chains", "five-stages"} & {*found}


@pytest.mark.parametrize("name", HONEST_SAMPLERS)
def test_honest_sampler_passes_all_vectors(name: str, vocabulary: Path) -> None:
    assert wrong_documents(HONEST_SAMPLERS[name], vocabulary) == []


def test_selection_must_fit_the_order_of_the_list() -> None:
    cases = vectors_of("dist").document["cases"]
    want = next(s for c in cases for r in c["rows"] for s in r["stages"] if len(choices(s)) == 2)
    by_logit = np.argsort(-np.array(want["logits"]))
    for order, name in ((np.arange(len(by_logit)), "listed"), (by_logit, "by_logit")):
        columns = (np.array(want[key])[order] for key in ("ids", "logits", "p"))
        ids, logits, p = columns
        for token in choices(want):
            text = stage_difference("dist", want, SampledList(ids, logits, p, token))
            assert bool(text) is (token != want["selected"][name])


def choices(stage: dict[str, Any]) -> set[int]:
    return {*stage["selected"].values()}


THRESHOLDS = [  # rows with a candidate at a threshold, which may be kept or removed
    (stage("top_p", p=0.75), np.log([0.5, 0.25, 0.15, 0.1])),
    (stage("min_p", p=0.5), np.log([0.5, 0.25, 0.15, 0.1])),
    (stage("xtc", p=1.0, t=0.25), np.log([0.5, 0.25, 0.15, 0.1])),
    (stage("top_k", k=2), np.array([3.0, 2.0, 2.0, 1.0])),
    (stage("top_n_sigma", n=2.0), np.array([2.0, 0.0])),  # the standard deviation is 1
    (stage("greedy"), np.array([3.0, 3.0, 2.0])),
    (stage("temp", t=0.0), np.array([3.0, 3.0, 2.0])),
    (stage("mirostat_v2", tau=1.0), np.log([0.5, 0.25, 0.15, 0.1])),
]


@pytest.mark.parametrize(("described", "logits"), THRESHOLDS, ids=lambda x: str(x)[:30])
def test_decision_on_a_threshold_is_called_unclear(
    described: dict[str, object], logits: object
) -> None:
    before = CandidateList.of_logits(np.asarray(logits, np.float32))
    (sampler,) = make_chain([described], len(before)).samplers
    after = sampler.clone().apply(before)
    assert margin_of(sampler, before, after) < CLEAR


def test_row_with_a_draw_on_an_edge_is_refused() -> None:
    spec = alone("dist", "x", "flat", n=400)  # steps of 0.0025, so that every draw is at an edge
    assert 400 * 2 * CLEAR > 1
    with pytest.raises(Unclear):
        try_case(spec, 1, 1, None)
