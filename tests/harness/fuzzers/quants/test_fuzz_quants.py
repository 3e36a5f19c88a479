"""The fuzzer of weight decoders: its cases, findings, shrinking and messages."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from lockstep.engine.errors import EngineError, Unsupported
from lockstep.engine.quants.base import F32, Bytes, WeightFormat
from lockstep.engine.registry import import_members
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.adapters.ieee754 import Ieee754
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.check.check import BadInput
from lockstep.harness.cli.fuzz import app
from lockstep.harness.context.runner import LocalSession
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.fuzzers.base import FuzzPlan, fuzzer_named, run_campaign
from lockstep.harness.fuzzers.quants.blocks import Cases
from lockstep.harness.fuzzers.quants.campaign import SAMPLE, BlockCampaign
from lockstep.harness.records import EXACT, Verdict
from lockstep.harness.report.jsonl import read_report
from tests.wrong_formats import mistaken

import_members("lockstep.engine.quants")
FORMATS = sorted(WeightFormat.family.values(), key=lambda kind: kind.type_id)
SOME = [WeightFormat.member(name) for name in ("Q4_K", "IQ2_S", "Q5_1", "Q8_0", "MXFP4", "IQ1_M")]
PER_FORMAT = pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
Decode = Callable[[type[WeightFormat], Bytes], Any]
INF, NAN = np.inf, np.nan


class Other(Reference):
    """An unregistered decoder that decodes in the way that a test chooses."""

    name = "other"
    decode: Decode

    def dequantize(self, type_name: str, raw: NDArray[np.uint8]) -> F32:
        answer: F32 = type(self).decode(WeightFormat.member(type_name), raw)
        return answer


def right(kind: type[WeightFormat], raw: Bytes) -> F32:
    return kind.dequantize(raw)


def engine(decode: Decode) -> type[Adapter]:
    return type("Engine", (Other,), {"decode": staticmethod(decode)})


def campaign(
    kind: type[WeightFormat],
    decode: Decode,
    *,
    cases: int = 2000,
    witness: Decode = right,
    oracle: type[Adapter] = Reference,
    **plan: Any,
) -> list[Verdict]:
    """Run a campaign against our own decoders, so that the test needs no llama.cpp."""
    sessions = [LocalSession(cls, None, EXACT) for cls in (engine(decode), oracle)]
    third, numbers = (LocalSession(cls, None, EXACT) for cls in (engine(witness), Ieee754))
    third.name = "witness"
    made = FuzzPlan(cases=cases, **plan)
    return list(BlockCampaign(made, kind, *sessions, third, numbers, lambda a, b: None).verdicts())


def statuses(verdicts: list[Verdict]) -> list[str]:
    return [verdict.status for verdict in verdicts]


# --- caught mistakes ------------------------------------------------------------------------


@PER_FORMAT
def test_right_decoder_agrees_and_states_the_number_of_weights(kind: type[WeightFormat]) -> None:
    (verdict,) = campaign(kind, right, cases=500)
    assert verdict.status == "agreed"
    assert verdict.detail["blocks"] == 500
    assert verdict.detail["cases"] == [0, 500]
    assert verdict.detail["witness_blocks"] == -(-500 // SAMPLE)


@pytest.mark.parametrize(("kind", "wrong"), mistaken(SOME))
def test_wrong_decoder_is_caught_with_a_small_reproducing_block(
    kind: type[WeightFormat], wrong: type[WeightFormat]
) -> None:
    found = campaign(kind, lambda _, raw: wrong.dequantize(raw))
    assert set(statuses(found)) == {"diverged"}
    assert exit_code(found) == 1
    for verdict in found:
        assert ("witness agrees with reference" in verdict.summary) or "next to" in verdict.summary
        assert verdict.key == f"fuzz-quants/{kind.name}/{verdict.detail['field']}/" + str(
            verdict.detail["symptom"]
        )
        block = bytes.fromhex(verdict.detail["block"])
        assert f"--block {block.hex()}" in verdict.repro
        original = bytes.fromhex(verdict.detail["original"])
        case = Cases(kind, 0).blocks(verdict.detail["case"], verdict.detail["case"] + 1)
        assert case.tobytes() == original
        if verdict.detail["symptom"] == "neighbours":
            assert verdict.repro.count("--block") == 2
            continue
        assert np.count_nonzero(np.frombuffer(block, np.uint8)) <= 4
        again = campaign(kind, lambda _, raw: wrong.dequantize(raw), given=(block,))
        assert [v.key for v in again] == [verdict.key]


def test_one_wrong_entry_of_a_code_book_is_found_and_named() -> None:
    def entry_changed(kind: type[WeightFormat], raw: Bytes) -> F32:
        blocks = raw.copy().view(kind.layout)
        blocks["qs"][blocks["qs"] == 0x37] = 0x36
        return kind.dequantize(blocks.view(np.uint8))

    found = campaign(WeightFormat.member("IQ2_S"), entry_changed)
    assert {v.detail["field"] for v in found} == {"qs"}
    assert all("= 0x37" in v.summary for v in found)


@pytest.mark.parametrize(
    ("change", "symptom"),
    [
        (lambda values: values * np.float32(1 + 2.0**-23), "rounding"),
        (lambda values: values * np.float32(1.00001), "factor"),
        (lambda values: values + np.float32(0), "zero-sign"),
        (lambda values: -values, "sign"),
        (lambda values: np.minimum(values, np.finfo(np.float32).max), "infinity"),
        (lambda values: np.where(np.isnan(values), np.float32(0), values), "nan"),
        (lambda values: values.reshape(-1, 2, 16)[:, ::-1].reshape(-1), "order"),
        (lambda values: np.where(np.abs(values) < 2.0**-20, np.float32(0), values), "lost"),
    ],
)
def test_each_kind_of_mistake_has_its_name(change: Callable[[F32], F32], symptom: str) -> None:
    def wrong(kind: type[WeightFormat], raw: Bytes) -> F32:
        with np.errstate(all="ignore"):
            return change(kind.dequantize(raw))

    found = campaign(WeightFormat.member("Q4_0"), wrong, cases=20_000)
    assert symptom in {verdict.detail["symptom"] for verdict in found}


def test_nan_with_another_sign_is_counted_but_not_a_difference() -> None:
    def flipped(kind: type[WeightFormat], raw: Bytes) -> F32:
        values = kind.dequantize(raw)
        return np.where(np.isnan(values), -values, values)

    (verdict,) = campaign(WeightFormat.member("Q8_0"), flipped)
    assert verdict.status == "agreed"
    assert verdict.detail["nan_sign"] > 50
    assert "only the sign of a NaN differs" in verdict.summary
    assert exit_code([verdict]) == 0


# --- missing answers ------------------------------------------------------------------------


def failing(error: Exception, when: Callable[[Bytes], bool] = lambda raw: True) -> Decode:
    def decode(kind: type[WeightFormat], raw: Bytes) -> F32:
        if when(raw.reshape(-1, kind.layout.itemsize)):
            raise error
        return kind.dequantize(raw)

    return decode


def test_crash_is_narrowed_to_one_block_and_the_run_is_incomplete() -> None:
    kind = WeightFormat.member("TQ1_0")
    decode = failing(ZeroDivisionError("boom"), lambda blocks: bool((blocks[:, 3] == 0x17).any()))
    (verdict,) = campaign(kind, decode)
    assert verdict.status == "crashed"
    assert exit_code([verdict]) == 3
    block = bytes.fromhex(verdict.repro.split("--block ")[1])
    assert len(block) == kind.layout.itemsize
    assert block[3] == 0x17


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (Unsupported("no decoder"), "not-compared", 3),
        (EngineError("bad block"), "diverged", 1),
    ],
)
def test_refusing_engine_is_reported(error: Exception, status: str, code: int) -> None:
    found = campaign(WeightFormat.member("Q4_0"), failing(error))
    assert statuses(found) == [status]
    assert exit_code(found) == code
    assert str(error) in found[0].summary


def test_too_few_weights_are_no_answer_and_shrink_to_one_block() -> None:
    (verdict,) = campaign(WeightFormat.member("Q4_0"), lambda kind, raw: kind.dequantize(raw)[:-1])
    assert verdict.status == "malformed"
    assert verdict.key
    assert "expected float32 of shape (" in verdict.summary
    assert "--block" in verdict.repro


def test_plain_numbers_that_the_oracle_cannot_decode_follow_the_standard() -> None:
    class NoDecoder(Reference):
        name = "no-decoder"

        def dequantize(self, type_name: str, raw: NDArray[np.uint8]) -> F32:
            raise Unsupported("not decoded")

    found = {
        name: campaign(WeightFormat.member(name), right, oracle=NoDecoder, cases=100)
        for name in ("F64", "I16", "Q4_0")
    }
    assert statuses(found["F64"]) == statuses(found["I16"]) == ["agreed"]
    assert found["F64"][0].detail["oracle"] == "ieee754"
    assert statuses(found["Q4_0"]) == ["not-compared"]


# --- the witness ----------------------------------------------------------------------------


def test_witness_that_alone_differs_is_excused_by_name() -> None:
    def negative(kind: type[WeightFormat], raw: Bytes) -> F32:
        return -kind.dequantize(raw)

    found = campaign(WeightFormat.member("Q8_0"), right, witness=negative)
    assert set(statuses(found)) == {"excused", "agreed"}
    assert "witness differs from reference and" in found[0].summary
    assert "not among the known divergences" in found[0].summary
    assert exit_code(found) == 0


def test_report_says_if_the_witness_agrees_with_the_subject() -> None:
    def doubled(kind: type[WeightFormat], raw: Bytes) -> F32:
        return 2 * kind.dequantize(raw)

    found = campaign(WeightFormat.member("Q4_0"), doubled, witness=doubled)
    assert set(statuses(found)) == {"diverged"}
    assert any("witness agrees with other" in v.summary for v in found)


@pytest.mark.parametrize("error", [ZeroDivisionError("boom"), EngineError("boom")])
def test_failing_witness_is_not_blamed_on_the_subject(error: Exception) -> None:
    witness = failing(error, lambda blocks: len(blocks) > 10)
    found = campaign(WeightFormat.member("Q4_0"), right, witness=witness)
    assert statuses(found) == ["excused", "agreed"]
    assert "boom" in found[0].summary


def test_witness_without_a_decoder_is_reported() -> None:
    found = campaign(WeightFormat.member("Q1_0"), right, witness=failing(Unsupported("mute")))
    assert statuses(found) == ["excused", "agreed"]
    assert "mute" in found[0].summary


# --- the command ----------------------------------------------------------------------------


def test_campaign_leaves_a_valid_report_with_a_resume_command(tmp_path: Path) -> None:
    plan = FuzzPlan(targets=("Q4_0",), oracle="fast", cases=50, start=100, seed=9)
    result = run_campaign("quants", plan, tmp_path, ["lockstep", "fuzz", "quants"])
    assert result.code == 0
    rows = read_report(result.folder / "report.jsonl")
    assert rows[0]["campaign"]["start"] == 100
    assert rows[0]["seed"] == 9
    assert rows[1]["detail"]["cases"] == [100, 150]


def test_time_limit_ends_a_campaign_at_a_stated_case(tmp_path: Path) -> None:
    plan = FuzzPlan(targets=("F32",), oracle="fast", cases=1 << 40, seconds=0.0001)
    result = run_campaign("quants", plan, tmp_path, [])
    (verdict,) = result.verdicts
    assert verdict.status == "agreed"
    assert 0 < verdict.detail["cases"][1] == verdict.detail["blocks"] < 1 << 40


def test_targets_are_all_formats_in_ggmls_order() -> None:
    assert fuzzer_named("quants").targets() == [kind.name for kind in FORMATS]


@pytest.mark.parametrize(
    ("plan", "match"),
    [
        (FuzzPlan(targets=("Q9",)), r"has no target 'Q9' \(near: .*Q8_0"),
        (FuzzPlan(given=(b"12",)), "give one --type"),
        (FuzzPlan(targets=("Q4_0",), given=(b"12",)), "has 18 bytes, and the given block 2"),
        (FuzzPlan(targets=("Q4_0",), engine="nobody"), "no engine named 'nobody'"),
    ],
)
def test_contradictory_plan_is_refused_before_anything_runs(
    plan: FuzzPlan, match: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=match):
        run_campaign("quants", plan, tmp_path, [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--type", "Q4_0", "--cases", "20"], 0),
        (["--type", "Q4_0", "--block", "003c" + "08" * 16], 0),
        (["--type", "Q4_0", "--block", "xyz"], 2),
        (["--type", "Q9"], 2),
    ],
)
def test_command_ends_with_the_usual_exit_codes(
    options: list[str], code: int, tmp_path: Path
) -> None:
    words = ["quants", *options, "--oracle", "fast", "--report", str(tmp_path), "--json", "-q"]
    done = CliRunner().invoke(app, words if len(app.registered_commands) > 1 else words[1:])
    assert done.exit_code == code, done.output
