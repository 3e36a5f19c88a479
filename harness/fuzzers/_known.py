"""What is known to differ between decoders: tests/known_divergences.toml, in a checkout."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).parents[2] / "tests" / "known_divergences.toml"


@dataclass(frozen=True, kw_only=True)
class Known:
    """One entry. case: a block as hex; symptom: a word of harness.fuzzers, or `unsupported`."""

    id: str
    component: str  # an adapter's name
    version: str  # in which it was seen
    type: str
    case: str
    symptom: str
    sentence: str
    status: str  # "reported" or "not reported", and what was found when looking for a report
    link: str


def known_divergences(path: Path = FILE) -> list[Known]:
    """None if there is no such file, as in an installed package."""
    if not path.is_file():
        return []
    return [Known(**row) for row in tomllib.loads(path.read_text()).get("dequant", ())]


def entry_for(known: Sequence[Known], component: str, type_name: str, symptom: str) -> Known | None:
    wanted = (component, type_name, symptom)
    return next((k for k in known if (k.component, k.type, k.symptom) == wanted), None)
