"""Benchmarks: the measured engines, their turns and their results. No test judges an actual
speed."""

import json
import math
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from lockstep.engine.errors import Unsupported
from lockstep.engine.quants.base import WeightFormat
from lockstep.engine.registry import import_members
from lockstep.harness.adapters.parts import timing as _timing
from lockstep.harness.adapters.parts.timing import Piece, pieces_of, seconds_each
from lockstep.harness.bench.base import (
    BenchPlan,
    BenchRow,
    bench_named,
    geometric_mean,
    why_unmeasured,
)
from lockstep.harness.bench.quants import QuantsBench, blocks_of
from lockstep.harness.check.check import BadInput
from lockstep.harness.cli.bench import app, in_words, table_of
from lockstep.harness.context.runner import Session
from lockstep.harness.records import Answered, Outcome, Rejected, Unanswerable

import_members("lockstep.engine.quants")
FORMATS = sorted(WeightFormat.family.values(), key=lambda kind: kind.type_id)
OURS, GGML, GGUF = "reference", "llama.cpp", "gguf-py"


class Stopwatch(Session):
    """A stopwatch that returns the given seconds in order, and repeats the last."""

    def __init__(self, name: str, seconds: list[float], log: list[tuple[str, int]]) -> None:
        self.name, self.seconds, self.log = name, seconds, log

    def _ask(self, question: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome:
        assert question == "time_dequantize"
        self.log.append((self.name, args[3]))
        if not self.seconds:
            return Unanswerable(message="no decoder")
        value = self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]
        return Answered(value=value, seconds=0.0)


def measured(seconds: dict[str, list[float]], rounds: int = 2) -> tuple[BenchRow, list[Any]]:
    log: list[tuple[str, int]] = []
    sessions = {name: Stopwatch(name, seconds[name], log) for name in (OURS, GGML, GGUF)}
    plan = BenchPlan(size=2560, rounds=rounds)
    rates = QuantsBench().rates("Q4_K", plan, sessions, lambda a, b: None)
    return BenchRow(target="Q4_K", rates=rates), log


def test_engines_take_turns_and_the_best_round_counts() -> None:
    row, log = measured({OURS: [4.0, 2.0, 1.0, 8.0], GGML: [2.0], GGUF: [10.0]})
    one_round = [(name, n) for n in (1, 2) for name in (OURS, GGML, GGUF)]
    assert log == 2 * one_round
    assert row.rates[OURS, 1] == 2560 / 1.0
    assert row.rates[OURS, 2] == 2560 / 2.0
    assert row.ratio((OURS, 1), (GGML, 1)) == 2.0


def test_engine_without_a_decoder_is_asked_once_and_has_no_rate() -> None:
    row, log = measured({OURS: [1.0], GGML: [1.0], GGUF: []}, rounds=3)
    assert log.count((GGUF, 1)) == 1
    assert (GGUF, 1) not in row.rates
    assert row.ratio((OURS, 1), (GGUF, 1)) is None


def test_bench_without_our_own_decoder_is_refused() -> None:
    with pytest.raises(BadInput, match="no decoder"):
        measured({OURS: [], GGML: [1.0], GGUF: [1.0]})


def rows_of(*rates: tuple[str, float, float, float]) -> list[BenchRow]:
    """Return rows from tuples: type, our rate with one thread, our rate with two threads, ggml's
    rate with one thread."""
    return [
        BenchRow(target=name, rates={(OURS, 1): a, (OURS, 2): b, (GGML, 1): c})
        for name, a, b, c in rates
    ]


def test_broken_promises_name_the_types_responsible() -> None:
    slowest, mean, threads = QuantsBench().promises(
        rows_of(("A", 8.0, 16.0, 4.0), ("B", 3.0, 4.5, 4.0), ("C", 16.0, 32.0, 4.0))
    )
    assert (slowest.kept, slowest.found, slowest.below) == (False, 0.75, ("B",))
    assert mean.kept
    assert mean.found == pytest.approx((2 * 0.75 * 4) ** (1 / 3))
    assert (threads.kept, threads.below) == (True, ("B",))
    assert in_words(slowest).endswith("NOT REACHED (B below)")
    assert "promised 1.5: reached" in in_words(mean)


def test_promise_about_ggml_leaves_out_types_without_a_ggml_decoder() -> None:
    rows = [
        *rows_of(("A", 8.0, 16.0, 4.0)),
        BenchRow(target="F64", rates={(OURS, 1): 1, (OURS, 2): 1}),
    ]
    slowest, mean, threads = QuantsBench().promises(rows)
    assert "1 types" in mean.text
    assert "2 types" in threads.text
    assert slowest.below == ()
    assert threads.below == ("F64",)


def test_mean_of_ratios_is_geometric() -> None:
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert math.isnan(geometric_mean([]))


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_bench_decodes_ordinary_numbers(kind: type[WeightFormat]) -> None:
    """Random half-precision numbers would sometimes be NaN or infinite, and some code is slow on
    these."""
    raw = blocks_of(kind, 4096, seed=0)
    assert kind.whole_blocks(raw) * kind.weights == 4096
    if "d" in (kind.layout.names or ()) and kind.layout["d"].kind == "f":
        assert np.isfinite(kind.dequantize(raw)).all()
    assert len(np.unique(kind.dequantize(raw))) > 1 or kind.name in ("F16", "F32", "F64")


# --- timing ---------------------------------------------------------------------------------


def test_first_call_is_not_timed_but_a_later_call_is() -> None:
    pieces = pieces_of(np.zeros(8, np.uint8), (1, 1), 1)
    calls: list[Piece] = []
    assert 0 <= seconds_each(calls.append, pieces, 0.0) < float("inf")
    assert len(calls) == 2


def test_rate_counts_the_calls_of_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a single call would be a wrong measure, because it is the same with one thread
    and with two."""
    turns = [(0.0, 1.0, 3), (0.5, 2.0, 5)]
    monkeypatch.setattr(_timing, "repeat_work", lambda work, seconds: turns.pop())
    pieces = pieces_of(np.zeros(8, np.uint8), (1, 1), 2)
    assert seconds_each(lambda piece: None, pieces, 1.0) == 2.0 / 8


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_each_thread_decodes_all_blocks_into_its_own_memory(threads: int) -> None:
    kind = WeightFormat.member("Q4_0")
    raw = np.arange(7 * kind.layout.itemsize, dtype=np.uint8)
    pieces = pieces_of(raw, (kind.layout.itemsize, kind.weights), threads)
    assert len(pieces) == threads
    seconds_each(lambda piece: kind.dequantize_into(*piece), pieces, 0.0)
    assert {out.tobytes() for _, out in pieces} == {kind.dequantize(raw).tobytes()}
    assert len({out.ctypes.data for _, out in pieces}) == threads


def test_error_in_a_thread_is_raised_without_blocking_the_others() -> None:
    pieces = pieces_of(np.arange(4, dtype=np.uint8), (1, 1), 2)
    pieces[1][0][0] = 4

    def decode(piece: Piece) -> None:
        if piece[0][0] == 4:
            raise Unsupported("not this one")

    with pytest.raises(Unsupported, match="not this one"):
        seconds_each(decode, pieces, 0.0)


# --- the command ----------------------------------------------------------------------------


def test_table_has_a_dash_if_an_engine_has_no_decoder() -> None:
    rows = [BenchRow(target="Q1_0", rates={(OURS, 1): 2e9, (OURS, 2): 3e9, (GGML, 1): 1e9})]
    table = table_of(bench_named("quants"), rows)
    cells = [next(iter(column.cells)) for column in table.columns]
    assert cells == ["Q1_0", "2.00", "1.00", "-", "2.00", "3.00", "-", "-", "-", "1.50"]


def test_the_command_prints_figures_and_promises_as_json() -> None:
    words = [
        "quants",
        "--type",
        "Q4_0",
        "--rounds",
        "1",
        "--seconds",
        "0",
        "--size",
        "256",
        "--json",
        "-q",
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert figures["rows"][0]["target"] == "Q4_0"
    assert figures["rows"][0]["reference x1"] > 0
    assert {p["least"] for p in figures["promises"]} <= {1.0, 1.5, 1.8}


def test_an_unknown_type_is_refused_with_the_choices() -> None:
    done = CliRunner().invoke(app, ["quants", "--type", "Q9"])
    assert done.exit_code == 2
    assert "Q9" in done.output


def test_capture_promises_compare_with_plain_decoding_and_a_copy() -> None:
    rates = {"capture": 1 / 7.0, "plain": 1 / 2.0, "copy": 1 / 1.0, "callback": 1 / 3.0}
    row = BenchRow(target="m", rates={(name, 1): rate for name, rate in rates.items()})
    (promise,) = bench_named("shadow").promises([row])
    assert promise.found == pytest.approx((3 * 2 + 1) / 7)
    assert promise.kept


def test_the_cost_of_capture_is_measured_on_a_prompt_and_on_single_tokens() -> None:
    done = CliRunner().invoke(app, ["shadow", "--rounds", "1", "--json", "-q"])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert [row["target"] for row in figures["rows"]] == [
        "f32, exact, prompt of 64",
        "f32, exact, 16 single tokens",
        "f32, default, prompt of 64",
        "f32, default, 16 single tokens",
    ]
    assert all(row["capture x1"] > 0 for row in figures["rows"])


def test_refusal_in_a_bench_is_not_compared_with_another_engine() -> None:
    said = str(why_unmeasured("fast", "evaluate", Rejected(message="no such architecture")))
    assert said == "fast refuses: no such architecture"
    assert "cannot answer" in str(why_unmeasured("fast", "evaluate", Unanswerable(message="no")))
