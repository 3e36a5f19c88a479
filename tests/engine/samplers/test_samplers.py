"""Samplers follow their definitions on small lists with obvious answers."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest

from lockstep.engine.errors import NotInModel, Unsupported
from lockstep.engine.registry import import_members
from lockstep.engine.samplers.base import DrawingSampler, Sampler
from lockstep.engine.samplers.parts.candidates import CandidateList
from lockstep.engine.samplers.parts.chain import make_chain, make_sampler
from lockstep.engine.samplers.parts.constructors import BY_SAMPLER, CONSTRUCTORS
from lockstep.engine.samplers.parts.draws import GivenDraws, MersenneTwister
from lockstep.engine.samplers.parts.libstdcxx import bucket_order, sort_all, top_order
from lockstep.engine.samplers.parts.ways import LLAMA_CPP, Accident, Ways

import_members("lockstep.engine.samplers")
HALVES = np.log(np.array([8, 4, 2, 1, 1], np.float32))  # p: 1/2, 1/4, 1/8, 1/16, 1/16
INF = float("inf")


@dataclass(frozen=True)
class Words:
    """A vocabulary of seven words, the last of which ends a turn."""

    pieces = (b"a", b"ab", b"b", b"c", b"\n", b"x\n", b"")
    words = pieces
    ends = (6,)
    end_of_turn = 6

    def tokenize(self, text: bytes) -> list[int]:
        return [self.pieces.index(bytes([each])) for each in text]


def stage(sampler: str, **given: Any) -> dict[str, Any]:
    """Return a stage of a chain; a missing parameter gets a value with little effect."""
    plain = {"seed": 1, "min_keep": 1, "tau": 5.0, "eta": 0.1, "m": 100, "seq_breakers": ()}
    plain |= {"penalty_last_n": 64, "penalty_repeat": 1.0, "penalty_freq": 0.0}
    plain |= {"penalty_present": 0.0, "dry_multiplier": 1.0, "dry_base": 2.0}
    plain |= {"dry_allowed_length": 1, "dry_penalty_last_n": 64, "delta": 0.0, "exponent": 1.0}
    names = BY_SAMPLER[sampler].fields
    return {"sampler": sampler} | {name: given.get(name, plain.get(name)) for name in names}


KEPT: list[tuple[dict[str, Any], list[float], list[int]]] = [
    (stage("top_k", k=2), [1, 3, 2, 3], [1, 3]),
    (stage("top_k", k=0), [1, 3], [0, 1]),
    (stage("top_p", p=0.75), HALVES[::-1].tolist(), [4, 3]),
    (stage("top_p", p=0.76), HALVES.tolist(), [0, 1, 2]),
    (stage("top_p", p=0.1, min_keep=3), HALVES.tolist(), [0, 1, 2]),
    (stage("min_p", p=0.25), HALVES.tolist(), [0, 1, 2]),
    (stage("min_p", p=0.25), HALVES[::-1].tolist(), [2, 3, 4]),
    (stage("min_p", p=0.9, min_keep=2), HALVES[::-1].tolist(), [4, 3]),
    (stage("typical", p=0.2), HALVES.tolist(), [1]),
    (stage("typical", p=0.2), [*HALVES.tolist(), -INF], [1]),
    (stage("xtc", p=1.0, t=0.1), HALVES.tolist(), [2, 3, 4]),
    (stage("xtc", p=1.0, t=0.3), HALVES.tolist(), [0, 1, 2, 3, 4]),
    (stage("xtc", p=0.0, t=0.1), HALVES.tolist(), [0, 1, 2, 3, 4]),
    (stage("mirostat_v2", tau=1.1), HALVES.tolist(), [0, 1]),
    (stage("mirostat_v2", tau=0.1), HALVES.tolist(), [0]),
    (stage("mirostat", tau=20.0), [0.0] * 5, [0, 1, 2, 3, 4]),
]


@pytest.mark.parametrize(("described", "logits", "ids"), KEPT)
def test_samplers_keep_candidates(
    described: dict[str, Any], logits: list[float], ids: list[int]
) -> None:
    (found,) = make_chain([described], len(logits)).apply(
        CandidateList.of_logits(np.array(logits, np.float32))
    )
    assert found.ids.tolist() == ids


CHANGED: list[tuple[dict[str, Any], list[int], list[float]]] = [
    (stage("temp", t=0.5), [], [2, 4, 6, -2]),
    (stage("temp", t=0.0), [], [-INF, -INF, 3, -INF]),
    (stage("temp_ext", t=0.5), [], [2, 4, 6, -2]),
    (stage("penalties", penalty_repeat=2.0), [2, 2, 3], [1, 2, 1.5, -2]),
    (stage("penalties", penalty_freq=0.5), [2, 2, 3], [1, 2, 2, -1.5]),
    (stage("penalties", penalty_present=0.5), [2, 2, 3], [1, 2, 2.5, -1.5]),
    (stage("penalties", penalty_freq=1.0, penalty_last_n=2), [1, 2, 2, 3], [1, 2, 2, -2]),
    (stage("dry"), [0, 1, 2, 0, 1], [1, 2, 3 - 2, -1]),
    (stage("dry", dry_allowed_length=2), [0, 1, 2, 0, 1], [1, 2, 3 - 1, -1]),
    (stage("dry", dry_allowed_length=3), [0, 1, 2, 0, 1], [1, 2, 3, -1]),
    (stage("dry", dry_penalty_last_n=4), [0, 1, 2, 0, 1], [1, 2, 3 - 1, -1]),
    (stage("logit_bias", biases=((1, 1.0), (1, 1.0), (3, -INF))), [], [1, 4, 3, -INF]),
    (stage("top_n_sigma", n=1.0), [], [-INF, 2, 3, -INF]),
]


@pytest.mark.parametrize(("described", "accepted", "logits"), CHANGED)
def test_samplers_change_logits(
    described: dict[str, Any], accepted: list[int], logits: list[float]
) -> None:
    chain = make_chain([described], 4)
    for token in accepted:
        chain.accept(token)
    (found,) = chain.apply(CandidateList.of_logits(np.array([1, 2, 3, -1], np.float32)))
    assert found.logits.tolist() == logits


@pytest.mark.parametrize("described", [stage("penalties", penalty_freq=0.5), stage("dry")])
def test_reset_forgets_accepted_tokens(described: dict[str, Any]) -> None:
    chain = make_chain([described], 4)
    for token in [0, 1, 2, 0, 1]:
        chain.accept(token)
    chain.reset()
    (found,) = chain.apply(CandidateList.of_logits(np.zeros(4, "f4")))
    assert not found.logits.any()


def test_greedy_takes_the_first_largest() -> None:
    (found,) = make_chain([stage("greedy")], 3).apply(
        CandidateList.of_logits(np.array([1, 3, 3], "f4"))
    )
    assert found.token == 1


@pytest.mark.parametrize(("draw", "token"), [(0.0, 0), (0.49, 0), (0.51, 1), (0.9, 3), (1.0, 4)])
def test_dist_draws_by_probability(draw: float, token: int) -> None:
    chain = make_chain([stage("dist")], 5)
    chain.give([draw])
    (found,) = chain.apply(CandidateList.of_logits(HALVES))
    assert found.token == token
    assert found.p == pytest.approx([0.5, 0.25, 0.125, 0.0625, 0.0625])


def test_adaptive_p_prefers_the_target() -> None:
    chain = make_chain([stage("adaptive_p", target=0.25, decay=0.5)], 5)
    (found,) = chain.apply(CandidateList.of_logits(HALVES))
    assert int(np.argmax(found.p)) == 1


def test_adaptive_p_moves_against_accepted_tokens() -> None:
    chain = make_chain([stage("adaptive_p", target=0.25, decay=0.0)], 5)
    chain.give([0.0])
    (first,) = chain.apply(CandidateList.of_logits(HALVES))
    chain.accept(first.token)
    (second,) = chain.apply(CandidateList.of_logits(HALVES))
    assert first.token == 0
    assert second.p[0] < first.p[0]


def test_mirostat_follows_surprise() -> None:
    sampler = make_sampler(stage("mirostat_v2", tau=2.0, eta=0.5), 5)
    assert isinstance(sampler, DrawingSampler)
    sampler.source = GivenDraws(0.0)
    sampler.apply(CandidateList.of_logits(HALVES))
    assert sampler.mu == pytest.approx(4 - 0.5 * (1 - 2), abs=1e-6)  # type: ignore[attr-defined]


def test_breaker_ends_a_repetition() -> None:
    described = stage("dry", seq_breakers=(b"\n",))
    chain = make_chain([described], 7, Words())
    for token in [4, 0, 2, 4, 0]:
        chain.accept(token)
    (found,) = chain.apply(CandidateList.of_logits(np.zeros(7, np.float32)))
    # the last two tokens are a repetition, but only one counts after the breaker
    assert found.logits.tolist() == [0, 0, -1, 0, 0, 0, 0]


def test_infill_merges_words_with_their_beginnings() -> None:
    logits = np.log(np.array([0.2, 0.3, 0.15, 0.3, 0.05, 1e-9, 1e-9], "f4"))
    (found,) = make_chain([stage("infill")], 7, Words()).apply(CandidateList.of_logits(logits))
    assert found.ids.tolist() == [1, 3, 6]
    assert found.p[0] == pytest.approx(0.5 / 0.8)


def test_infill_keeps_only_likely_ends() -> None:
    (found,) = make_chain([stage("infill")], 7, Words()).apply(
        CandidateList.of_logits(np.zeros(7, "f4"))
    )
    assert found.ids.tolist() == [6]


def test_infill_needs_a_vocabulary() -> None:
    with pytest.raises(NotInModel, match="vocabulary"):
        make_chain([stage("infill")], 7).apply(CandidateList.of_logits(np.zeros(7, "f4")))


def test_constructors_match_our_samplers() -> None:
    assert {*Sampler.family} == {*BY_SAMPLER}
    assert len(CONSTRUCTORS) == len(BY_SAMPLER)
    for name, row in BY_SAMPLER.items():
        ours = {each.name for each in fields(Sampler.member(name)) if each.init}
        of_model = {"ways", "vocabulary", "n_vocab"}
        assert ours - of_model == {*row.fields}, name


def test_unknown_parameter_is_refused() -> None:
    with pytest.raises(Unsupported, match="top_k has k"):
        make_sampler({"sampler": "top_k", "n": 3}, 5)


CLONED = [
    stage("dist"),
    stage("xtc", p=0.5, t=0.1),
    stage("mirostat"),
    stage("mirostat_v2"),
    stage("penalties", penalty_freq=0.5),
    stage("adaptive_p", target=0.3, decay=0.9),
]


@pytest.mark.parametrize("described", CLONED)
def test_clone_continues_with_equal_results(described: dict[str, Any]) -> None:
    chain = make_chain([described, stage("greedy")], 300)
    logits = np.random.default_rng(1).normal(0, 2, 300).astype(np.float32)
    for token in (5, 9, 5):
        chain.apply(CandidateList.of_logits(logits))
        chain.accept(token)
    other = chain.clone()
    for _ in range(4):
        first, second = (each.apply(CandidateList.of_logits(logits)) for each in (chain, other))
        for a, b in zip(first, second, strict=True):
            assert (a.ids.tolist(), a.token) == (b.ids.tolist(), b.token)
            np.testing.assert_array_equal(a.logits, b.logits)


def test_clone_draws_anew_if_the_accident_is_enabled() -> None:
    described = stage("adaptive_p", target=0.3, decay=0.9)
    chain = make_chain([described], 9, ways=Ways(accidents=frozenset([Accident.ADAPTIVE_CLONE])))
    fresh = chain.draws()
    chain.apply(CandidateList.of_logits(np.zeros(9, "f4")))
    assert chain.draws() != fresh
    assert chain.clone().draws() == fresh


# --- libraries of llama.cpp -----------------------------------------------------------------------


def test_generator_matches_the_published_generator() -> None:
    draws = MersenneTwister(5489)
    words = [draws.word() for _ in range(10000)]
    assert words[-1] == 4123659995  # the C++ standard: the 10,000th of a default mt19937


@pytest.mark.parametrize("n", [1, 16, 17, 100, 3000])
def test_libstdcxx_order_matches_the_library(n: int) -> None:
    keys = np.random.default_rng(n).integers(-9, 9, n).astype(np.float32)
    for order in (sort_all(keys), top_order(keys, n), bucket_order(keys, n)):
        assert sorted(order.tolist()) == list(range(n))
        assert (np.diff(keys[order]) <= 0).all()


def test_libm_exp_is_within_one_unit_of_the_exact_value() -> None:
    x = np.random.default_rng(3).normal(0, 20, 2000).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    assert (np.abs(LLAMA_CPP.exp(x) - exact) <= np.spacing(exact.astype(np.float32))).all()
