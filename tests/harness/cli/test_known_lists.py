"""Lists of known failures, written and read by `check` without loss."""

from pathlib import Path

from lockstep.harness.runs.known_failures import UNKNOWN, read_known
from lockstep.harness.runs.run import builtin_model
from tests.command_line import Lockstep, assert_refused


def test_unwritable_list_is_reported_before_the_run(lockstep: Lockstep, tmp_path: Path) -> None:
    model = builtin_model("f32", tmp_path)
    missing = tmp_path / "no" / "k.json"
    for path, words in (
        (tmp_path, "is a folder"),
        (missing, "is not a folder"),
        (model, "a model"),
    ):
        asked = ("check", "builtin:f32", "--write-known", path, "--report", tmp_path)
        assert_refused(lockstep(*asked), words)
    assert not list(tmp_path.glob("*-check"))


def test_file_other_than_a_list_is_not_overwritten(lockstep: Lockstep, tmp_path: Path) -> None:
    report = tmp_path / "report.jsonl"
    report.write_text('{"type": "header"}\n')
    asked = ("check", "builtin:f32", "--write-known", report, "--report", tmp_path)
    assert_refused(lockstep(*asked), 'expected {"known": [...]}')
    assert report.read_text() == '{"type": "header"}\n'


def test_reasons_stay_in_a_rewritten_list(lockstep: Lockstep, tmp_path: Path) -> None:
    """The same command runs again after a user has written down the reasons."""
    path = tmp_path / "known.json"
    asked = ["check", "builtin:f32", "--engine", "mutant:wrong-eps", "--oracle", "reference"]
    asked += ["--suite", "trace", "--tokens", "4", "--report", str(tmp_path), "-q"]
    asked += ["--write-known", str(path)]
    lockstep(*asked)
    path.write_text(path.read_text().replace(UNKNOWN, "issue 12"))
    lockstep(*asked)
    assert set(read_known(path).reasons.values()) == {"issue 12"}


def test_number_of_listed_failures_is_in_the_last_line(lockstep: Lockstep, tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    asked = ["check", "builtin:f32", "--engine", "mutant:wrong-eps", "--oracle", "reference"]
    asked += ["--suite", "trace", "--tokens", "4", "--report", str(tmp_path), "-q"]
    for more, code, words in (
        (["--write-known", str(path)], 1, "DIVERGENCE"),
        (["--known", str(path)], 0, " listed as known ("),
    ):
        ending = lockstep(*asked, *more)
        assert (ending.code, words in ending.out) == (code, True)
