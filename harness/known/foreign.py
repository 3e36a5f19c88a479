"""Known differences between engines of harness.foreign and llama.cpp: [[foreign]]."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from lockstep.engine.choices import choices
from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.hparams import architecture_name
from lockstep.harness.known import entries
from lockstep.harness.known.own import own_differences
from lockstep.harness.records import Verdict

ERROR = "message"  # name of the fact that contains the engine's own message


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A known difference: the verdicts that it explains, the files that it affects, and the
    smallest such file."""

    id: str
    engine: str
    version: str
    suites: tuple[str, ...]
    # facts: each difference of the verdict has one of these sets
    shows: tuple[Mapping[str, Any], ...]
    sentence: str
    cause: str  # the place in the engine's source, or what is known about it
    status: str
    link: str = ""
    tensor: str = ""  # excuses only files with a tensor of this name
    key: str = ""  # excuses only files with this key
    kind: str = ""  # excuses only files with a tensor of this type
    # excuses only files with these values of keys
    says_so: Mapping[str, Any] = field(default_factory=dict)
    # excuses no file with one of these values of keys
    unless: Mapping[str, Any] = field(default_factory=dict)
    lacks: str = ""  # excuses only files without this key
    within: float = 0.0  # largest relative error that is excused; 0: any error
    arch: str = ""  # excuses only files of this architecture
    acid: str = ""  # the minimal case is the acid model of this type, of architecture llama
    # the minimal case is a seeded model with these parameters
    recipe: Mapping[str, Any] = field(default_factory=dict)
    # keys to add to that model or to replace
    keys: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    without: tuple[str, ...] = ()  # keys to remove from that model

    def is_about(self, engine: str, version: str, suite: str) -> bool:
        same = self.engine == engine and version.endswith(f" {self.version}")
        return same and suite in self.suites

    def applies(self, file: GgufFile) -> bool:
        """Return True if the file has the properties that this finding requires."""
        return (
            (not self.tensor or self.tensor in file.tensors)
            and (not self.key or self.key in file.metadata)
            and self.lacks not in file.metadata
            and all(value_of(file, key) == value for key, value in self.says_so.items())
            and all(value_of(file, key) != value for key, value in self.unless.items())
            and (not self.arch or self.arch == architecture_name(file.metadata))
            and (not self.kind or any(t.type.name == self.kind for t in file.tensors.values()))
        )

    def explains(self, facts: Mapping[str, Any], verdict: Verdict) -> bool:
        """Return True if the finding explains this difference of the verdict."""
        return any(has_facts(facts, wanted) for wanted in self.shows) and self.is_near(verdict)

    def is_near(self, verdict: Verdict) -> bool:
        """Return True if the error is at most `within`. For a whole run, this is the error relative
        to the largest logit, as the suite measures it. Otherwise it is the error of the worst
        element."""
        if not self.within:
            return True
        if (error := verdict.detail.get("worst_relative_to_largest_logit")) is not None:
            return bool(error <= self.within)
        expected, actual = (verdict.detail.get(name) for name in ("expected", "actual"))
        if type(expected) is not float or type(actual) is not float:
            return False
        return abs(actual - expected) <= self.within * abs(expected)


def value_of(file: GgufFile, key: str) -> Any:
    """Return the value of a key that holds a single value; else None."""
    found = file.metadata.get(key)
    return found.data if found is not None and found.element is None else None


@cache
def foreign_findings() -> tuple[Finding, ...]:
    return tuple(Finding(**{**row, **lists(row)}) for row in entries("foreign"))


def lists(row: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {name: tuple(row.get(name, ())) for name in ("suites", "shows", "without")}


def finding_named(name: str) -> Finding:
    """Return the finding with this id. Raises Unsupported, with the known ids, if there is none."""
    found = {each.id: each for each in foreign_findings()}
    if name not in found:
        known = [*found, *(each.id for each in own_differences())]
        raise Unsupported(f"no finding named {name!r} {choices(name, known)}")
    return found[name]


def excused_if_foreign(verdict: Verdict, engine: str, version: str, model: Path) -> Verdict:
    """Return the verdict, excused if all its differences are known for this engine and version.

    A crash keeps its status, because the crash kept the suite from asking its remaining questions.
    The verdict's summary says that the crash is known.
    """
    suspects = [
        each for each in foreign_findings() if each.is_about(engine, version, verdict.suite)
    ]
    if not suspects or verdict.status not in ("diverged", "crashed", "not-compared"):
        return verdict
    with GgufFile.open(model) as file:
        suspects = [each for each in suspects if each.applies(file)]
    found: dict[str, str] = {}
    for facts in differences_of(verdict):
        known = next((each for each in suspects if each.explains(facts, verdict)), None)
        if known is None:
            return verdict
        found[known.id] = f"{known.id}: {known.sentence}"
    said = "; ".join(found.values())
    return replace(
        verdict,
        status="excused" if verdict.status == "diverged" else verdict.status,
        summary=f"{verdict.summary} (known: {said})",
        detail={**verdict.detail, "known": said},
    )


def differences_of(verdict: Verdict) -> Iterator[Mapping[str, Any]]:
    """Yield the facts of each difference, or of each kind of difference. Yield empty facts if the
    verdict omits some differences."""
    detail = verdict.detail
    _, _, symptom = verdict.key.partition("/")
    facts = {**detail, "suite": verdict.suite, "status": verdict.status}
    facts["symptom"] = symptom.partition("/")[0]
    if kinds := detail.get("kinds"):
        yield from ({**facts, **kind} for kind in kinds)
        return
    rows = detail.get("differences") or [{}]
    yield from ({**facts, **row} for row in rows)
    if "differences" in detail and len(rows) < detail.get("total", 0):
        yield {}


def has_facts(facts: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(name in facts and is_fact(name, facts[name], wanted[name]) for name in wanted)


def is_fact(name: str, fact: Any, wanted: Any) -> bool:
    """Return True if the fact equals `wanted`, or one of several wanted facts. An engine's own
    error message need only contain the wanted words."""
    if isinstance(wanted, list):
        return any(is_fact(name, fact, each) for each in wanted)
    if isinstance(wanted, Mapping):
        return isinstance(fact, Mapping) and has_facts(fact, wanted)
    if name == ERROR:
        return wanted in fact
    return bool(fact == wanted) or bool(fact != fact and wanted != wanted)  # equal, or both NaN
