"""Lists of known failures as `check` writes and reads them: nothing that stands there is lost."""

from pathlib import Path

import pytest

from lockstep.harness.cli import app
from lockstep.harness.runs.known_failures import UNKNOWN, read_known
from lockstep.harness.runs.run import builtin_model


def test_a_list_that_cannot_be_written_is_said_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = builtin_model("f32", tmp_path)
    missing = tmp_path / "no" / "k.json"
    for path, words in ((tmp_path, "is a folder"), (missing, "is no folder"), (model, "a model")):
        with pytest.raises(SystemExit) as end:
            app(["check", "builtin:f32", "--write-known", str(path), "--report", str(tmp_path)])
        assert end.value.code == 2
        assert words in capsys.readouterr().err
    assert not list(tmp_path.glob("*-check"))


def test_another_file_is_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.jsonl"
    report.write_text('{"type": "header"}\n')
    with pytest.raises(SystemExit) as end:
        app(["check", "builtin:f32", "--write-known", str(report), "--report", str(tmp_path)])
    assert end.value.code == 2
    assert 'expected {"known": [...]}' in capsys.readouterr().err
    assert report.read_text() == '{"type": "header"}\n'


def test_reasons_stay_when_a_list_is_written_anew_without_being_read_as_known(
    tmp_path: Path,
) -> None:
    """The same command once more, after somebody wrote down why."""
    path = tmp_path / "known.json"
    asked = ["check", "builtin:f32", "--engine", "mutant:wrong-eps", "--oracle", "reference"]
    asked += ["--suite", "trace", "--tokens", "4", "--report", str(tmp_path), "-q"]
    asked += ["--write-known", str(path)]
    with pytest.raises(SystemExit):
        app(asked)
    path.write_text(path.read_text().replace(UNKNOWN, "issue 12"))
    with pytest.raises(SystemExit):
        app(asked)
    assert set(read_known(path).reasons.values()) == {"issue 12"}


def test_what_is_listed_is_said_in_the_last_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "known.json"
    asked = ["check", "builtin:f32", "--engine", "mutant:wrong-eps", "--oracle", "reference"]
    asked += ["--suite", "trace", "--tokens", "4", "--report", str(tmp_path), "-q"]
    for more, code, words in (
        (["--write-known", str(path)], 1, "DIVERGENCE"),
        (["--known", str(path)], 0, " listed as known ("),
    ):
        with pytest.raises(SystemExit) as end:
            app([*asked, *more])
        assert end.value.code == code
        assert words in capsys.readouterr().out
