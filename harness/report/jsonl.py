"""report.jsonl: a header, verdicts, a footer. A file without a footer belongs to a run that did not
finish."""

import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Self

from lockstep.harness.records import Verdict
from lockstep.harness.redaction import redact
from lockstep.harness.report.page.write import write_page_of_run

SCHEMA = Path(__file__).parents[1] / "schemas" / "report.json"
FORMAT = 1


class ReportWriter:
    """Writes and flushes one line at a time, so that a crash loses no earlier line."""

    def __init__(self, folder: Path, header: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "report.jsonl"
        self.file = self.path.open("x", encoding="utf-8")
        self.counts: Counter[str] = Counter()
        self.write({"kind": "header", "format": FORMAT, **header})

    def verdict(self, verdict: Verdict) -> None:
        self.counts[verdict.status] += 1
        self.write({"kind": "verdict", **asdict(verdict)})

    def checkpoint(self, target: str, done: int) -> None:
        """Write a fuzzer's checkpoint: all findings before case `done` of the target are in the
        report."""
        self.write({"kind": "checkpoint", "target": target, "done": done})

    @classmethod
    def go_on(cls, path: Path, rows: Sequence[Mapping[str, Any]]) -> Self:
        """Continue the report of a run that was stopped. `rows` are the report's complete lines."""
        writer = cls.__new__(cls)
        writer.path = path
        writer.counts = Counter(row["status"] for row in rows if row["kind"] == "verdict")
        part = path.with_name(f"{path.name}.part")
        part.write_text("".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))
        part.replace(path)  # an incomplete last line is dropped
        writer.file = path.open("a", encoding="utf-8")
        return writer

    def footer(self, exit_code: int, seconds: float, **more: Any) -> None:
        """Write the last line, and report.html. `more` holds further facts. For a check, these
        include the engines of each model, because the header has only the engines of the first
        model."""
        counts = dict(sorted(self.counts.items()))
        self.write(
            {"kind": "footer", "exit_code": exit_code, "seconds": round(seconds, 3)}
            | {"verdicts": sum(counts.values()), "counts": counts, **more}
        )
        self.file.close()
        write_page_of_run(self.path)

    def close(self) -> None:
        """Close the report without a footer, as for an unfinished run."""
        self.file.close()

    def write(self, row: Mapping[str, Any]) -> None:
        self.file.write(json.dumps(plain(row), allow_nan=False, ensure_ascii=True) + "\n")
        self.file.flush()
        if row["kind"] == "footer":
            os.fsync(self.file.fileno())


def plain(value: Any) -> Any:
    """Return the value in JSON form, without secrets. NaN and infinities become "nan", "inf",
    "-inf"."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, bytes):
        return value.hex()
    return value


class BrokenReport(Exception):
    """Error: a report is damaged. The message names the fault and its line."""


def read_report(path: Path) -> list[dict[str, Any]]:
    """Return all rows except checkpoints, each valid by the schema. Raises BrokenReport if the
    report is damaged or has no footer."""
    rows = rows_of(path, path.read_bytes().splitlines())
    check_order(path, rows)
    return [row for row in rows if row["kind"] != "checkpoint"]


def read_unfinished(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a run that was stopped, including checkpoints. Raises
    BrokenReport if no line is complete.

    The last line may be incomplete; it is omitted.
    """
    raw = path.read_bytes()
    rows = rows_of(path, raw[: raw.rfind(b"\n") + 1].splitlines())
    if not rows or rows[0]["kind"] != "header":
        raise BrokenReport(f"{path}: the first line must be the header")
    if rows[-1]["kind"] == "footer":
        check_order(path, rows)
    elif any(row["kind"] == "footer" for row in rows):
        raise BrokenReport(f"{path}: the footer must be the last line")
    return rows


def rows_of(path: Path, lines: Sequence[bytes]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # not JSON or not UTF-8
            raise BrokenReport(f"{path}, line {number}: truncated, or not JSON ({error})") from None
        if fault := fault_of(row):
            raise BrokenReport(f"{path}, line {number}: {fault}")
        rows.append(row)
    return rows


@cache
def validator() -> Any:
    """Return a compiled validator. It is much faster on the long columns of reports, and compiling
    it takes only milliseconds."""
    from jsonschema_rs import Draft202012Validator

    return Draft202012Validator(json.loads(SCHEMA.read_text()))


def fault_of(row: Any) -> str:
    """Return the schema's error for the row; "" if there is none. The error's words come from the
    slower validator. It also accepts file names that are not valid UTF-8."""
    with suppress(UnicodeEncodeError):
        if validator().is_valid(row):
            return ""
    from jsonschema import Draft202012Validator

    faults = Draft202012Validator(json.loads(SCHEMA.read_text())).iter_errors(row)
    return next((fault.message for fault in faults), "")


def check_order(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    kinds = [row["kind"] for row in rows]
    if not kinds or kinds[0] != "header":
        raise BrokenReport(f"{path}: the first line must be the header")
    if kinds[-1] != "footer":
        raise BrokenReport(
            f"{path}: no footer: the run did not finish, and verdicts may be missing"
        )
    if set(kinds[1:-1]) - {"verdict", "checkpoint"}:
        raise BrokenReport(f"{path}: only verdicts may stand between header and footer")
    if rows[-1]["verdicts"] != kinds.count("verdict"):
        raise BrokenReport(
            f"{path}: the footer counts {rows[-1]['verdicts']} verdicts, "
            f"there are {kinds.count('verdict')}"
        )
    counts = Counter(row["status"] for row in rows if row["kind"] == "verdict")
    if rows[-1]["counts"] != dict(counts):
        raise BrokenReport(f"{path}: the footer counts {rows[-1]['counts']}, there are {counts}")
