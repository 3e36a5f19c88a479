"""What engines of harness.foreign are known to do otherwise than llama.cpp: [[foreign]]."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from engine.choices import choices
from engine.errors import Unsupported
from engine.gguf_file import GgufFile
from harness.known import entries
from harness.records import Verdict


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One difference: which verdict it explains, on which files, and the smallest of these."""

    id: str
    engine: str
    version: str
    suites: tuple[str, ...]
    says: str  # a pattern for each thing that the verdict says to differ
    sentence: str
    cause: str  # where in the engine's source, or what is known of it
    status: str
    link: str = ""
    tensor: str = ""  # excused only where the file has a tensor of that name
    key: str = ""  # ... or this key
    kind: str = ""  # ... or a tensor of that type
    recipe: Mapping[str, Any] = field(default_factory=dict)  # of a seeded llama: the case
    keys: Mapping[str, tuple[str, Any]] = field(default_factory=dict)  # more, or others, of it
    without: tuple[str, ...] = ()  # keys that it does not have

    def applies(self, file: GgufFile) -> bool:
        """Whether the file has what the finding is about."""
        return (
            (not self.tensor or self.tensor in file.tensors)
            and (not self.key or self.key in file.metadata)
            and (not self.kind or any(t.type.name == self.kind for t in file.tensors.values()))
        )

    def explains(self, verdict: Verdict) -> bool:
        """Every difference of the verdict, or it hides others."""
        said = verdict.detail.get("differences")
        texts = [row["text"] for row in said] if said else [verdict.summary]
        whole = not said or len(said) == verdict.detail.get("total", len(said))
        pattern = re.compile(self.says, re.DOTALL)
        return whole and all(pattern.search(text) for text in texts)


@cache
def foreign_findings() -> tuple[Finding, ...]:
    return tuple(Finding(**{**row, **lists(row)}) for row in entries("foreign"))


def lists(row: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(row.get(name, ())) for name in ("suites", "without")}


def finding_named(name: str) -> Finding:
    """Raises Unsupported, with the ids that are known."""
    found = {each.id: each for each in foreign_findings()}
    if name not in found:
        raise Unsupported(f"no finding named {name!r} {choices(name, found)}")
    return found[name]


def excused_if_foreign(verdict: Verdict, engine: str, version: str, model: Path) -> Verdict:
    """The same verdict, unless it accuses this version of that engine of what is known.

    What ended a question stays what it is, and says that it is known: other questions of the suite
    were not asked.
    """
    if verdict.status not in ("diverged", "crashed", "not-compared"):
        return verdict
    for each in foreign_findings():
        same = each.engine == engine and verdict.suite in each.suites
        if same and version.endswith(f" {each.version}") and each.explains(verdict):
            with GgufFile.open(model) as file:
                if not each.applies(file):
                    continue
            known = f"{each.id}: {each.sentence}"
            return replace(
                verdict,
                status="excused" if verdict.status == "diverged" else verdict.status,
                summary=f"{verdict.summary} (known: {known})",
                detail={**verdict.detail, "known": known},
            )
    return verdict
