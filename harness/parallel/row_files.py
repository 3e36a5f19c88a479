"""Files with a JSON row for each result, from which an interrupted long run can continue."""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from lockstep.harness.check.check import BadInput

Row = TypeVar("Row")


def read_rows(file: Path | None, row_of: Callable[[dict[str, Any]], Row]) -> list[Row]:
    if file is None or not file.exists():
        return []
    found = []
    for number, text in enumerate(file.read_bytes().splitlines(), 1):
        try:
            found.append(row_of(json.loads(text.decode())))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            what = f"{file}, line {number}: not a result of this command ({error})"
            raise BadInput(f"{what}; name another file, or delete the line") from None
    return found


def make_row(kind: type[Row]) -> Callable[[dict[str, Any]], Row]:
    """Return a function that turns a JSON row into a dataclass. Lists become tuples."""
    return lambda held: kind(**{name: as_tuples(value) for name, value in held.items()})


def as_tuples(value: Any) -> Any:
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


def add_rows(file: Path | None, rows: Iterable[Any]) -> None:
    """Append rows (dataclasses) to the file."""
    if file is not None:
        with file.open("a", encoding="utf-8") as text:
            text.write("".join(f"{json.dumps(asdict(row))}\n" for row in rows))
