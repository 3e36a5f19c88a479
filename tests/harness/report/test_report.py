"""report.jsonl: every row is valid, a report without one of its parts is broken, and no report is
overwritten."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, ValidationError

from lockstep.harness.exit_codes import exit_code
from lockstep.harness.records import EXACT, EngineInfo, Verdict
from lockstep.harness.report.header import header, model_row, sha256_of
from lockstep.harness.report.jsonl import SCHEMA, BrokenReport, ReportWriter, plain, read_report
from lockstep.harness.runs.run import run_folder

VALIDATOR = Draft202012Validator(json.loads(SCHEMA.read_text()))
STRANGE = "\x1b[2J [red] \udc80 \u2028 \u2029 \x85 \x00 \ud83d lone \r\n two lines 你好"


def verdict(**changes: Any) -> Verdict:
    known: dict[str, Any] = {"suite": "logits", "case": "m.gguf", "status": "agreed"}
    return Verdict(**(known | {"summary": "all agree"} | changes))


VERDICTS = (
    verdict(),
    verdict(status="diverged", summary=STRANGE, key="logits/value", repro="lockstep check m"),
    verdict(status="not-compared", summary="cannot be asked", detail={"\udc80": ["a", "b"]}),
    verdict(detail={"gain": math.inf, "err": -math.inf, "deep": {"x": [math.nan, 1.5, b"\xff"]}}),
)


def head(model: Path) -> dict[str, Any]:
    model.write_bytes(b"a model")
    engines = [EngineInfo(engine="reference", version="1", settings=EXACT)]
    return header("lockstep check m.gguf", 7, [model_row("m.gguf", model)], engines)


def written(folder: Path, verdicts: tuple[Verdict, ...] = VERDICTS) -> Path:
    writer = ReportWriter(folder, head(folder.parent / "m.gguf"))
    for each in verdicts:
        writer.verdict(each)
    writer.footer(exit_code(verdicts), 1.25)
    return writer.path


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return written(tmp_path / "run")


def test_schema_is_valid() -> None:
    Draft202012Validator.check_schema(json.loads(SCHEMA.read_text()))


def test_every_row_is_valid_and_survives_a_round_trip(report: Path) -> None:
    rows = read_report(report)
    assert [row["kind"] for row in rows] == ["header", *["verdict"] * 4, "footer"]
    assert rows[0]["seed"] == 7
    assert rows[2]["summary"] == STRANGE
    assert rows[-1]["exit_code"] == 1
    assert rows[-1]["counts"] == {"agreed": 2, "diverged": 1, "not-compared": 1}


def test_value_that_json_lacks_is_written_as_text(report: Path) -> None:
    detail = read_report(report)[4]["detail"]
    assert detail == {"gain": "inf", "err": "-inf", "deep": {"x": ["nan", 1.5, "ff"]}}
    assert b"NaN" not in report.read_bytes()
    assert b"Infinity" not in report.read_bytes()


def test_file_is_ascii_and_one_line_per_row(report: Path) -> None:
    text = report.read_bytes().decode("ascii")
    assert len(text.splitlines()) == 6


def test_a_file_cut_after_any_line_is_broken(report: Path) -> None:
    lines = report.read_bytes().splitlines(keepends=True)
    for n in range(len(lines)):
        report.write_bytes(b"".join(lines[:n]))
        with pytest.raises(BrokenReport, match="footer" if n else "header"):
            read_report(report)


def test_a_file_cut_inside_any_line_is_broken(report: Path) -> None:
    raw = report.read_bytes()
    ends = [i for i, byte in enumerate(raw) if byte == ord("\n")]
    for start, end in zip([-1, *ends], ends, strict=False):
        for at in (start + 2, (start + end) // 2, end - 1):
            report.write_bytes(raw[:at])
            with pytest.raises(BrokenReport, match="truncated, or not JSON"):
                read_report(report)


def without_line(n: int) -> Callable[[list[bytes]], list[bytes]]:
    return lambda lines: lines[:n] + lines[n + 1 :]


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (without_line(0), "header"),
        (without_line(2), "counts 4 verdicts, there are 3"),
        (lambda lines: [*lines[:2], lines[1], *lines[3:]], "the footer counts"),
        (lambda lines: [*lines, lines[-1]], "between header and footer"),
        (lambda lines: [*lines, lines[1]], "no footer"),
        (lambda lines: [lines[0], *lines], "between header and footer"),
        (lambda lines: [*lines[:3], b"\xff\xfe\n", *lines[3:]], "line 4: truncated, or not JSON"),
        (lambda lines: [*lines[:3], b"[" * 100_000 + b"\n"], "line 4: truncated, or not JSON"),
        (lambda lines: [*lines[:3], b"7\n", *lines[3:]], "line 4"),
        (lambda lines: [*lines[:3], b'{"kind": "verdict"}\n', *lines[3:]], "line 4"),
        (lambda lines: [x.replace(b'"agreed"', b'"fine"') for x in lines], "line 2"),
        # the row has a key that is not a text
        (lambda lines: [x.replace(b'"not-compared"', b'"fine"') for x in lines], "line 4"),
    ],
    ids=range(12),
)
def test_an_edited_report_is_broken(
    report: Path, edit: Callable[[list[bytes]], list[bytes]], says: str
) -> None:
    report.write_bytes(b"".join(edit(report.read_bytes().splitlines(keepends=True))))
    with pytest.raises(BrokenReport, match=says):
        read_report(report)


def test_dying_writer_leaves_its_lines_and_no_footer(tmp_path: Path) -> None:
    writer = ReportWriter(tmp_path / "run", head(tmp_path / "m.gguf"))
    writer.verdict(VERDICTS[0])
    # rows are on disk before the file is closed
    assert len(writer.path.read_bytes().splitlines()) == 2
    with pytest.raises(BrokenReport, match="no footer"):
        read_report(writer.path)
    writer.footer(0, 0.0)
    assert len(read_report(writer.path)) == 3


def test_a_report_is_never_overwritten(report: Path) -> None:
    before = report.read_bytes()
    with pytest.raises(FileExistsError):
        written(report.parent)
    assert report.read_bytes() == before


def test_two_runs_in_one_second_get_two_folders(tmp_path: Path) -> None:
    folders = {run_folder(tmp_path / "reports", "check") for _ in range(5)}
    assert len(folders) == 5
    assert all(folder.is_dir() for folder in folders)


@pytest.mark.parametrize("missing", ["key", "repro"])
def test_a_divergence_without_a_key_or_a_command_is_not_valid(missing: str) -> None:
    row = {"kind": "verdict", "suite": "s", "case": "c", "status": "diverged", "summary": "x"}
    row |= {"detail": {}, "key": "k", "repro": "r"}
    VALIDATOR.validate(row)
    with pytest.raises(ValidationError):
        VALIDATOR.validate(row | {missing: ""})


@settings(derandomize=True, max_examples=50)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)
def test_detail_of_any_type_becomes_json(value: Any) -> None:
    once = plain({"x": value})
    text = json.dumps(once, allow_nan=False, ensure_ascii=True)
    assert json.loads(text) == once


def test_model_is_identified_by_its_bytes(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"abc")
    row = model_row("m.gguf", model, "both", recipe={"seed": 1})
    assert row["bytes"] == 3
    assert row["sha256"] == sha256_of(model)
    assert row["sha256"].startswith("ba7816bf")
    model.write_bytes(b"abd")
    assert sha256_of(model) != row["sha256"]
