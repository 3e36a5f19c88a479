"""report.jsonl: header, verdicts, footer; a file without a footer is a run that did not finish."""

import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.records import Verdict

SCHEMA = Path(__file__).parents[1] / "schemas" / "report.json"
FORMAT = 1


class ReportWriter:
    """Writes one line at a time and flushes it, so that a crash leaves all that was known."""

    def __init__(self, folder: Path, header: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "report.jsonl"
        self.file = self.path.open("x", encoding="utf-8")
        self.counts: Counter[str] = Counter()
        self.write({"kind": "header", "format": FORMAT, **header})

    def verdict(self, verdict: Verdict) -> None:
        self.counts[verdict.status] += 1
        self.write({"kind": "verdict", **asdict(verdict)})

    def footer(self, exit_code: int, seconds: float) -> None:
        counts = dict(sorted(self.counts.items()))
        self.write(
            {"kind": "footer", "exit_code": exit_code, "seconds": round(seconds, 3)}
            | {"verdicts": sum(counts.values()), "counts": counts}
        )
        self.file.close()

    def write(self, row: Mapping[str, Any]) -> None:
        self.file.write(json.dumps(plain(row), allow_nan=False, ensure_ascii=True) + "\n")
        self.file.flush()
        if row["kind"] == "footer":
            os.fsync(self.file.fileno())


def plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become the strings "nan", "inf" and "-inf"."""
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
    """A report that is not what it should be: what, and in which line."""


def read_report(path: Path) -> list[dict[str, Any]]:
    """All rows, each valid by the schema; raises BrokenReport, also for a missing footer."""
    from jsonschema import Draft202012Validator

    validator = Draft202012Validator(json.loads(SCHEMA.read_text()))
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            row = json.loads(line)
        except ValueError as error:  # no JSON, or no UTF-8
            raise BrokenReport(f"{path}, line {number}: cut off or no JSON ({error})") from None
        for fault in validator.iter_errors(row):
            raise BrokenReport(f"{path}, line {number}: {fault.message}")
        rows.append(row)
    check_order(path, rows)
    return rows


def check_order(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    kinds = [row["kind"] for row in rows]
    if not kinds or kinds[0] != "header":
        raise BrokenReport(f"{path}: the first line must be the header")
    if kinds[-1] != "footer":
        raise BrokenReport(f"{path}: no footer: the run did not finish, its verdicts are not all")
    if set(kinds[1:-1]) - {"verdict"}:
        raise BrokenReport(f"{path}: only verdicts may stand between header and footer")
    if rows[-1]["verdicts"] != len(rows) - 2:
        raise BrokenReport(
            f"{path}: the footer counts {rows[-1]['verdicts']} verdicts, there are {len(rows) - 2}"
        )
    counts = Counter(row["status"] for row in rows[1:-1])
    if rows[-1]["counts"] != counts:
        raise BrokenReport(f"{path}: the footer counts {rows[-1]['counts']}, there are {counts}")
