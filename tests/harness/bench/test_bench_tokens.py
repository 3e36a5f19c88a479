"""`bench tokens`: its texts, its rows and its promises. No test judges times."""

from collections import Counter
from pathlib import Path

import pytest

from lockstep.harness.bench.base import BenchPlan, BenchRow, bench_named
from lockstep.harness.bench.prose import long_word, prose
from lockstep.harness.bench.tokens import OURS, THEIRS, TokensBench
from lockstep.harness.check.check import BadInput


def test_prose_is_seeded_of_the_requested_length_and_repetitive() -> None:
    text = prose(200_000, seed=1)
    assert len(text) == 200_000
    assert text == prose(200_000, seed=1)
    assert text != prose(200_000, seed=2)
    words = Counter(text.decode(errors="ignore").split())
    assert 3000 < len(words) < 15_000
    assert words["the"] > 1000
    assert any(not word.isascii() for word in words)


def test_long_word_is_a_single_word_without_a_pattern() -> None:
    word = long_word(50_000, seed=1)
    assert len(word) == 50_000
    assert word.isalpha()
    assert len({word[i : i + 8] for i in range(len(word))}) > 45_000


def test_each_target_is_measured_on_prose_and_on_a_word_at_two_lengths() -> None:
    pytest.importorskip("llama_cpp", reason="no llama_cpp: nothing was measured beside it")
    plan = BenchPlan(targets=("builtin:llama",), size=4000, rounds=1)
    rows = list(bench_named("tokens").run(plan, lambda target, text: None))
    assert [row.target for row in rows] == [
        "llama, prose",
        "llama, one word",
        "llama, one word, a quarter of it",
    ]
    assert all(row.rates.keys() == {(OURS, 1), (THEIRS, 1)} for row in rows)
    assert all(rate > 0 for row in rows for rate in row.rates.values())
    assert len(TokensBench().promises(rows)) == 2


@pytest.mark.parametrize(
    ("prose_rates", "word_rates", "kept"),
    [
        ((5.0, 10.0), (4.0, 4.0), [True, True]),
        ((4.9, 10.0), (4.0, 4.0), [False, True]),
        ((50.0, 10.0), (1.0, 4.0), [True, False]),  # a quarter of the speed: quadratic
    ],
)
def test_bench_promises_half_of_llama_cpps_speed_and_no_quadratic_time(
    prose_rates: tuple[float, float], word_rates: tuple[float, float], kept: list[bool]
) -> None:
    whole, part = word_rates
    rows = [
        BenchRow(target="x, prose", rates={(OURS, 1): prose_rates[0], (THEIRS, 1): prose_rates[1]}),
        BenchRow(target="x, one word", rates={(OURS, 1): whole, (THEIRS, 1): 1.0}),
        BenchRow(target="x, one word, a quarter of it", rates={(OURS, 1): part, (THEIRS, 1): 1.0}),
    ]
    assert [promise.kept for promise in TokensBench().promises(rows)] == kept


@pytest.mark.parametrize("target", ["nowhere.gguf", "builtin:nothing"])
def test_a_target_that_is_not_a_vocabulary_is_refused(target: str, tmp_path: Path) -> None:
    plan = BenchPlan(targets=(target,), size=100, rounds=1)
    with pytest.raises(BadInput, match=r"no such file|no built-in vocabulary"):
        list(TokensBench().run(plan, lambda target, text: None))
