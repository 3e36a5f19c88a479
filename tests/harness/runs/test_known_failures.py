"""Failures in a user's list are excused. All other failures count as usual, and resolved entries
are errors."""

import json
from pathlib import Path
from typing import Any

import pytest

from lockstep.engine.errors import InvalidModel
from lockstep.harness.check.check import BadInput, Plan
from lockstep.harness.cli.terminal import ending_of
from lockstep.harness.context.suite import no_answer
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.parallel.works import Forks
from lockstep.harness.records import EXACT, Rejected, Status, Verdict
from lockstep.harness.runs.hints import next_step
from lockstep.harness.runs.known_failures import (
    UNKNOWN,
    Extent,
    KnownFailures,
    read_known,
    write_known,
)
from lockstep.harness.runs.result import RunResult
from lockstep.harness.runs.run import Listener, builtin_model, run_plans


def verdict(key: str, status: Status = "diverged", suite: str = "trace", **detail: Any) -> Verdict:
    said = f"{key} is off"
    named = {"suite": suite, "case": "m", "key": key, "repro": "again"}
    return Verdict(status=status, summary=said, detail=detail, **named)


def off_by(size: float, kind: str = "value") -> Verdict:
    return verdict("rope", expected=1.0, actual=1.0 + size * 1e-6, allowed=1e-6, kind=kind)


def known(*keys: str) -> KnownFailures:
    return KnownFailures(reasons={("m", "trace", key): "issue 12" for key in keys})


def test_listed_divergence_is_excused_with_its_reason_and_no_other() -> None:
    listed = known("rope")
    first, second = (listed.excuse(verdict(key)) for key in ("rope", "norm"))
    assert (first.status, second.status) == ("excused", "diverged")
    assert first.summary == "known (issue 12): rope is off"
    assert first.detail["known"] == "issue 12"
    other_suite = listed.excuse(verdict("rope", suite="products"))
    assert other_suite.status == "diverged"


def test_run_conforms_if_all_divergences_are_listed() -> None:
    listed = known("rope").excuse(verdict("rope"))
    assert exit_code([listed]) == 0
    assert exit_code([listed, verdict("", "not-applicable")]) == 0
    assert exit_code([listed, verdict("", "not-compared")]) == 3
    assert exit_code([verdict("", "excused")]) == 3  # a tie proves nothing


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (off_by(4.0), ""),
        (off_by(5.9), ""),
        (off_by(1.1), "its size is 1.1, but 4 is listed"),
        (off_by(41.0), "its size is 41, but 4 is listed"),
        (off_by(4.0, "not finite"), "its kind is 'not finite', but 'value' is listed"),
        (off_by(float("nan")), "its size is none, but 4 is listed"),
    ],
)
def test_other_fault_at_the_same_node_is_not_excused(
    found: Verdict, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "known.json"
    write_known(path, [off_by(4.0)], known())
    (row,) = json.loads(path.read_text())["known"]
    assert row["at"] == {"": [{"kind": "value", "size": 4.0}]}
    listed = read_known(path)
    seen = listed.excuse(found)
    assert seen.status == ("diverged" if words else "excused")
    assert words in seen.summary
    assert list(listed.gone([seen], "again")) == []


@pytest.mark.parametrize(
    ("detail", "size"),
    [
        ({"worst_relative_to_largest_logit": 0.5, "allowed_relative": 0.25, "actual": 9.0}, 2.0),
        ({"expected": 344, "actual": 12, "margin": 0.5, "allowed": 0.125}, 4.0),
        ({"expected": 1.5, "actual": 1.0, "mismatched": 7}, 7.0),
        ({"expected": 1.5, "actual": 1.0, "allowed": 0.0, "mismatched": 7}, 7.0),
        ({"expected": "[1]", "actual": "[2]", "total": 25}, 25.0),
        ({"expected": 1.0, "actual": float("nan"), "allowed": 0.1, "mismatched": 3}, 3.0),
        ({"margin": None}, None),
        ({}, None),
    ],
)
def test_extent_of_a_divergence_is_its_size(
    detail: dict[str, Any], size: float | None, tmp_path: Path
) -> None:
    path = tmp_path / "known.json"
    write_known(path, [verdict("rope", **detail)], known())
    assert read_known(path).places == {("m", "trace", "rope"): {"": [Extent(size=size)]}}


def reads(*keys: str) -> Verdict:
    """Return one verdict of the suite metadata, for any number of wrong keys."""
    return verdict("metadata/key/mine", total=len(keys), where=", ".join(keys))


def refuses(message: str) -> Verdict:
    detail = no_answer("mine", "evaluate", Rejected(message=message)).detail
    return verdict("logits/diverged", **detail)


@pytest.mark.parametrize(
    ("listed", "found"),
    [
        (reads("key 'context_length'"), reads("key 'rope.freq_base'")),
        (reads("key 'a'"), reads("key 'a'", "key 'b'")),
        (refuses("two sequences are not supported"), refuses("weights of blk.1 are unreadable")),
    ],
)
def test_divergence_in_another_key_or_another_refusal_is_not_excused(
    listed: Verdict, found: Verdict, tmp_path: Path
) -> None:
    path = tmp_path / "known.json"
    write_known(path, [listed], known())
    assert read_known(path).excuse(listed).status == "excused"
    assert read_known(path).excuse(found).status == "diverged"


def test_listed_refusal_is_not_a_comparison() -> None:
    listed = known("logits/diverged").excuse(refuses("no such thing"))
    assert listed.status == "excused"
    assert exit_code([listed]) == 3


def acid(test: str, says: str) -> Verdict:
    return verdict("acid/rope-base", suite="acid", test=test, says=says)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (acid("rope-base", "10000 taken for 1000?"), ""),
        (acid("rope-base", "all pairs alike"), "its kind is 'all pairs alike'"),
        (acid("context", "10000 taken for 1000?"), "context is not listed"),
    ],
)
def test_other_answer_to_an_acid_test_is_not_excused(
    found: Verdict, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "known.json"
    write_known(path, [acid("rope-base", "10000 taken for 1000?")], known())
    seen = read_known(path).excuse(found)
    assert seen.status == ("diverged" if words else "excused")
    assert words in seen.summary


def test_rewritten_list_adds_new_failures_and_keeps_old_failures(
    tmp_path: Path,
) -> None:
    path = tmp_path / "known.json"
    write_known(path, [off_by(4.0)], known())
    for size, then in ((5.0, 4.0), (3.0, 4.0), (41.0, 41.0)):
        listed = read_known(path)
        write_known(path, [listed.excuse(off_by(size))], listed)
        (one,) = read_known(path).places[("m", "trace", "rope")][""]
        assert one.size == then


def weight(tensor: str, column: int = 0, n: int = 1) -> Verdict:
    detail = {"tensor": tensor, "row": 5, "column": column, "expected": 1.0, "actual": 2.0}
    return verdict("dequant/value/F32", suite="dequant", **detail, mismatched=n)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (weight("blk.3.ffn_down.weight"), ""),
        (weight("blk.0.attn_v.weight"), "blk.0.attn_v.weight, row 5, column 0 is not listed"),
        (weight("blk.3.ffn_down.weight", column=1), "column 1 is not listed"),
        (weight("blk.3.ffn_down.weight", n=2), "its size is 2, but 1 is listed"),
    ],
)
def test_other_weight_is_not_excused(found: Verdict, words: str, tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    write_known(path, [weight("blk.3.ffn_down.weight")], known())
    seen = read_known(path).excuse(found)
    assert seen.status == ("diverged" if words else "excused")
    assert words in seen.summary


def test_two_entries_with_one_key_and_place_are_both_excused(tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    write_known(path, [off_by(4.0), off_by(400.0)], known())
    listed = read_known(path)
    sizes = {4.0: "excused", 400.0: "excused", 100.0: "diverged"}
    assert {size: listed.excuse(off_by(size)).status for size in sizes} == sizes


def test_an_entry_of_an_older_list_has_a_size_and_no_places(tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    row = {"case": "m", "suite": "trace", "key": "rope", "reason": "r", "kind": "value", "size": 4}
    path.write_text(json.dumps({"known": [row]}))
    listed = read_known(path)
    assert [listed.excuse(off_by(size)).status for size in (39, 41)] == ["excused", "diverged"]


def test_an_entry_without_kind_and_size_excuses_any() -> None:
    assert known("rope").excuse(off_by(1e9, "shape")).status == "excused"


def test_only_divergences_are_excused() -> None:
    crashed = known("rope").excuse(verdict("rope", "crashed"))
    assert crashed.status == "crashed"


def test_resolved_entry_is_an_error() -> None:
    listed = known("rope", "norm")
    seen = [listed.excuse(verdict("rope")), verdict("", "agreed")]
    (gone,) = listed.gone(seen, "lockstep check m --known k")
    assert gone.status == "diverged"
    assert "norm is listed as known (issue 12), but no longer differs: remove it" in gone.summary
    assert gone.repro == "lockstep check m --known k"
    assert exit_code([*seen, gone]) == 1


@pytest.mark.parametrize("status", ["crashed", "timed-out", "malformed", "not-compared"])
def test_entries_of_an_unfinished_suite_are_not_resolved(status: Status) -> None:
    assert list(known("norm").gone([verdict("", status)], "again")) == []


def test_entries_of_suites_that_did_not_run_are_not_resolved() -> None:
    assert list(known("norm").gone([verdict("", "agreed", suite="logits")], "again")) == []


def test_rewritten_list_keeps_its_reasons(tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    assert (
        write_known(path, [verdict("rope"), verdict("rope"), verdict("", "agreed")], known()) == 1
    )
    assert read_known(path).reasons == {("m", "trace", "rope"): UNKNOWN}
    listed = known("rope")
    seen = [listed.excuse(verdict("rope")), verdict("norm")]
    assert write_known(path, seen, listed) == 2
    assert read_known(path).reasons == {
        ("m", "trace", "norm"): UNKNOWN,
        ("m", "trace", "rope"): "issue 12",
    }


def test_unchecked_failures_stay_in_a_rewritten_list(tmp_path: Path) -> None:
    """The run omitted a suite and a model, and one of its suites did not finish."""
    path = tmp_path / "known.json"
    listed = KnownFailures(
        reasons={
            ("m", "trace", "rope"): "issue 12",
            ("m", "logits", "off"): "issue 13",
            ("other", "trace", "rope"): "issue 14",
            ("m", "decode", "token"): "issue 15",
        }
    )
    seen = [verdict("", "agreed"), verdict("", "crashed", suite="decode")]
    assert write_known(path, [*seen, *listed.gone(seen, "again")], listed) == 3
    assert read_known(path).reasons == {
        name: reason for name, reason in listed.reasons.items() if reason != "issue 12"
    }


def test_entry_of_an_unknown_suite_is_refused(tmp_path: Path) -> None:
    """An entry of an unknown suite would excuse nothing, and would never count as gone."""
    listed = KnownFailures(reasons={("f32", "tarce", "rope"): "issue 12"})
    with pytest.raises(BadInput, match="rope: no suite 'tarce'"):
        run(tmp_path, "reference", listed)


def one(name: str, value: Any) -> str:
    row = {"case": "m", "suite": "s", "key": "k", "reason": "r", name: value}
    return json.dumps({"known": [row]})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[", "not JSON"),
        ("[]", 'expected {"known"'),
        ('{"known": [{}]}', "entry 0: expected the texts case, suite, key, reason"),
        ('{"known": [{"case": "m", "suite": "s", "key": "k", "reason": ""}]}', "entry 0: expected"),
        (one("more", "x"), "entry 0: expected"),
        (one("kind", 7), "entry 0: expected"),
        (one("size", "large"), "entry 0: size: expected a number, got 'large'"),
        (one("size", -1), "entry 0: size: expected a number, got -1"),
        (one("size", float("nan")), "entry 0: size: expected a number, got nan"),
        (one("at", []), "entry 0: at: give either places"),
        (one("at", {"rope": {}}), "entry 0: at 'rope': expected a list of objects"),
        (one("at", {"rope": [{"size": "x"}]}), "at 'rope': size: expected a number, got 'x'"),
        (one("at", {"rope": [{"more": 1}]}), "at 'rope': expected a kind and a size"),
    ],
)
def test_invalid_list_is_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    path.write_text(text)
    with pytest.raises(InvalidModel) as error:
        read_known(path)
    assert words in str(error.value)


def test_an_entry_is_listed_once(tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    row = {"case": "m", "suite": "s", "key": "k", "reason": "r"}
    path.write_text(json.dumps({"known": [row, row]}))
    with pytest.raises(InvalidModel, match="k is listed twice"):
        read_known(path)


def plans_of(folder: Path, engine: str) -> list[Plan]:
    model = builtin_model("f32", folder)
    plan = Plan(
        case="f32",
        model=model,
        subject_model=model,
        engine=engine,
        oracle="reference",
        settings=EXACT,
        suites=("trace",),
        n_tokens=4,
        command="m",
    )
    return [plan]


def run(folder: Path, engine: str, listed: KnownFailures) -> RunResult:
    plans = plans_of(folder, engine)
    return run_plans(plans, folder / "reports", ["lockstep"], Forks(1), Listener(), listed)


def test_run_passes_with_its_own_list_and_a_repaired_engine_does_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "known.json"
    wrong = run(tmp_path, "mutant:wrong-eps", KnownFailures())
    assert wrong.code == 1
    assert write_known(path, wrong.verdicts, KnownFailures()) >= 1
    again = run(tmp_path, "mutant:wrong-eps", read_known(path))
    assert again.code == 0
    assert {v.status for v in again.verdicts} == {"excused", "agreed"}
    mended = run(tmp_path, "reference", read_known(path))
    assert mended.code == 1
    assert any("no longer differs" in v.summary for v in mended.verdicts)
    assert ending_of(mended).startswith("OUT OF DATE")
    assert ending_of(wrong) == "DIVERGENCE"
    (plan,) = plans_of(tmp_path, "reference")
    assert next_step([plan], mended) == ""  # without a mistake there is no next step


def test_list_of_one_engine_does_not_excuse_a_larger_fault_of_another(
    tmp_path: Path,
) -> None:
    path = tmp_path / "known.json"
    wrong = run(tmp_path, "mutant:wrong-eps", KnownFailures())
    write_known(path, wrong.verdicts, KnownFailures())
    other = run(tmp_path, "mutant:stale-norm", read_known(path))
    assert other.code == 1
    grown = [v for v in other.verdicts if v.status == "diverged" and "is listed" in v.summary]
    assert {v.key for v in grown} & {v.key for v in wrong.verdicts}
