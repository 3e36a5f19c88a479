"""Servers are tested by lists and draws: a wrong sampler is found, and an honest sampler is never
accused."""

from functools import cache
from math import comb, exp, log
from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.gguf.split_files import open_model
from lockstep.engine.registry import import_members
from lockstep.engine.samplers.parts.vocabulary import TokenizerWords
from lockstep.engine.tokenizers.base import tokenizer_of
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.mutants.parts.wrong_samplers import WRONG_SAMPLERS
from lockstep.harness.records import DrawAnswer, DrawRequest
from lockstep.harness.samplers.drawn import (
    Labels,
    NextToken,
    Unlikely,
    judge_draws,
    judge_listed,
    log_tail,
)
from lockstep.harness.samplers.drawn_cases import orders_for
from lockstep.harness.samplers.served import ORDER, NotSaid, Result, ServedPart, ServedRun
from lockstep.harness.synth.builtin import BUILTIN_VOCABULARIES
from tests.models import with_metadata
from tests.served_samplers import KINDS, Sampling

import_members("lockstep.harness.mutants")
NOISE = 1e-3
PROMPT = (0, 1, 2, 0, 3, 0, 1, 2, 4, 0, 1, 2)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vocabulary")
    return with_metadata(folder / "vocabulary.gguf", BUILTIN_VOCABULARIES["llama"])


@cache
def words_of(path: Path) -> TokenizerWords:
    return TokenizerWords(tokenizer_of(open_model(path).metadata))


def run_of(cls: type[Reference], kind: str, path: Path, seed: int = 0) -> ServedRun:
    """Return a run on seeded logits. The server's logits differ from these by the noise."""
    rng, n = np.random.default_rng(seed), len(words_of(path).pieces)
    row = rng.normal(0, 2, n).astype(np.float32)
    likely = np.argsort(-row)[[6, 15, 30, 60, 90]].tolist()
    prompt = tuple(int(likely[i]) for i in PROMPT)
    served = np.asarray(row + rng.uniform(-NOISE, NOISE, n), np.float32)
    token = NextToken(row=row, noise=NOISE, accepted=prompt, words=words_of(path))
    ask = KINDS[kind](Sampling(cls, path, seed), served, prompt)
    run = ServedRun(token=token, labels=Labels.by_id(n, ()), prompt=prompt, ask=ask)
    run.has_lists = run.find_lists()
    return run


def judge(run: ServedRun, part: str) -> ServedPart:
    if part == ORDER:
        return run.judge_stage(part, list(orders_for(run.stages)))
    return run.judge_stage(part, [(stage,) for stage in run.stages[part]])


@pytest.mark.parametrize("kind", KINDS)
def test_honest_server_is_not_accused(kind: str, vocabulary: Path) -> None:
    run = run_of(Reference, kind, vocabulary)
    asked = ("top_k", "top_p", "temp", "penalties", "grammar")
    run.stages = {name: run.stages[name][:2] for name in asked}
    found = list(run.results())
    results = {each.part: each.result for each in found}
    assert not {Result.WRONG, Result.IGNORED} & {*results.values()}
    right = {part for part, result in results.items() if result is Result.RIGHT}
    assert right >= {"dist", "temp", "top_p"}
    assert right >= {"grammar", ORDER} or kind.startswith("openai")


@pytest.mark.parametrize(
    ("name", "kind", "part"),
    [
        ("top-k-one-more", "llama-server", "top_k"),
        ("temp-first", "llama-server", ORDER),
        ("penalty-per-occurrence", "llama-server", "penalties"),
        ("grammar-never-moves", "llama-server", "grammar"),
        ("dry-linear", "llama-server", "dry"),
        ("min-p-of-logits", "llama-server by draws", "min_p"),
        ("penalty-twice", "llama-server by draws", "penalties"),
        ("temp-multiplies", "openai", "temp"),
        ("penalty-frequency-once", "openai", "penalties"),
        ("top-k-off-is-greedy", "openai", "top_k"),
        ("top-p-drops-crossing", "openai alone", "top_p"),
    ],
)
def test_wrong_sampler_of_a_server_is_found(
    name: str, kind: str, part: str, vocabulary: Path
) -> None:
    run = run_of(WRONG_SAMPLERS[f"mutant:{name}"], kind, vocabulary)
    assert judge(run, part).result is Result.WRONG


# with these seeds, a token of the prompt becomes the likeliest by far
@pytest.mark.parametrize("seed", [3, 4])
def test_list_after_penalties_has_room_for_noise(seed: int, vocabulary: Path) -> None:
    found = judge(run_of(Reference, "llama-server", vocabulary, seed), "penalties")
    assert found.result is Result.RIGHT


def test_wrong_stage_is_named_and_its_order_is_not_tested(vocabulary: Path) -> None:
    run = run_of(WRONG_SAMPLERS["mutant:temp-multiplies"], "llama-server", vocabulary)
    run.stages = {name: run.stages[name][:3] for name in ("temp", "top_p", "min_p")}
    results = {each.part: each.result for each in run.results()}
    assert {part for part, found in results.items() if found is Result.WRONG} == {"temp"}
    assert results[ORDER] is Result.UNASKED


def test_other_stages_are_not_tested_if_plain_draws_are_wrong(vocabulary: Path) -> None:
    run = run_of(WRONG_SAMPLERS["mutant:dist-is-greedy"], "openai", vocabulary)
    results = {each.part: each.result for each in run.results()}
    assert results.pop("dist") is Result.WRONG
    assert {*results.values()} == {Result.UNASKED}


def test_parameter_that_is_not_promised_may_be_ignored(vocabulary: Path) -> None:
    run = run_of(Reference, "openai", vocabulary)
    honest = run.ask

    def ask(request: DrawRequest) -> DrawAnswer | NotSaid:
        kept = tuple(s for s in request.chain if s["sampler"] not in ("top_k", "top_p"))
        answer = honest(DrawRequest(chain=kept, prompt=request.prompt, seed=request.seed))
        promised = request.chain[0]["sampler"] == "top_p"
        assert isinstance(answer, DrawAnswer)
        return DrawAnswer(token=answer.token, promised=promised)

    run.ask = ask
    assert judge(run, "top_k").result is Result.IGNORED
    assert judge(run, "top_p").result is Result.WRONG


@pytest.mark.parametrize(
    ("cls", "result"),
    [(Reference, Result.RIGHT), (WRONG_SAMPLERS["mutant:grammar-open-on-error"], Result.WRONG)],
)
def test_invalid_grammar_must_be_refused(
    cls: type[Reference], result: Result, vocabulary: Path
) -> None:
    assert run_of(cls, "llama-server", vocabulary).judge_bad_grammars().result is result


def test_binomial_tail_is_exact() -> None:
    for count, p, ks in ((9, 0.5, (9, 10)), (1, 0.7, (0, 1)), (10, 0.2, (10,))):
        right = sum(comb(10, k) * p**k * (1 - p) ** (10 - k) for k in ks)
        assert log_tail(10, count, p, p) == pytest.approx(log(right))
    assert log_tail(10, 5, 0.4, 0.6) == 0.0
    assert exp(log_tail(10, 1, 0.0, 0.0)) == 0.0


def test_candidate_within_the_noise_of_a_cut_is_not_judged() -> None:
    row = np.array([2.0, 1.0, 1.0005, -3.0], np.float32)
    token = NextToken(row=row, noise=1e-3, accepted=())
    runs = token.runs(({"sampler": "top_k", "k": 2},))
    for second in (1, 2):
        p = np.exp(row[[0, second]].astype(np.float64))
        listed = tuple(zip((0, second), (p / p.sum()).tolist(), strict=True))
        assert judge_listed(listed, runs, 4) is None
    strange = judge_listed(((0, 0.73), (1, 0.26), (3, 0.01)), runs, 4)
    assert strange is not None
    assert (strange.kind, strange.tokens) == (Unlikely.KEPT, (3,))


def test_one_forbidden_draw_is_a_finding() -> None:
    token = NextToken(row=np.array([2.0, 1.0, 0.0], np.float32), noise=1e-4, accepted=())
    runs, labels = token.runs(({"sampler": "top_k", "k": 2},)), Labels.by_id(3, ())
    found = judge_draws([1] * 40 + [2] * 19 + [3], runs, labels)
    assert found is not None
    assert (found.kind, found.tokens, found.log_p) == (Unlikely.KEPT, (2,), -np.inf)


def test_labels_by_text_share_texts_and_hide_half_characters() -> None:
    labels = Labels.by_text([b" a", b"a", b"\xc3", b"<end>"], (3,))
    assert labels.label(b"a") == labels.of[0] == labels.of[1] != 0
    assert labels.of[2] == labels.of[3] == labels.label(None) == labels.label(b"?") == 0
