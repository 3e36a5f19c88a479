"""Known differences of the oracles, llama.cpp and gguf-py, each with a case that shows it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lockstep.harness.known import document

FOREIGN = "foreign"  # name of the table about engines under test, see known/foreign.py
SAID = ("id", "component", "version", "sentence", "status", "link")


@dataclass(frozen=True, kw_only=True)
class OwnDifference:
    """A row of the list: a behaviour of an oracle, and a case that demonstrates it. The form of a
    case differs between tables."""

    table: str
    id: str
    component: str = "llama.cpp"
    version: str
    sentence: str
    status: str
    link: str
    case: dict[str, Any]

    def report(self) -> str:
        """Return a text that can be filed as an issue."""
        lines = [f"# {self.sentence}", "", f"Seen in {self.component} {self.version}.", ""]
        lines += [f"Case ({self.table}):", "", *self.case_lines(), "", f"Status: {self.status}"]
        return "\n".join([*lines, *([self.link] if self.link else [])])

    def case_lines(self) -> Iterator[str]:
        for name, value in self.case.items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield from (f"    {line}" for line in f"{name}: {text}".splitlines())


def own_differences() -> Iterator[OwnDifference]:
    for table, rows in document().items():
        for row in rows if table != FOREIGN else ():
            said = {name: row[name] for name in SAID if name in row}
            case = {name: value for name, value in row.items() if name not in SAID and value != ""}
            yield OwnDifference(table=table, case=case, **said)
