"""Known differences between decoders: the [[dequant]] entries of harness/known."""

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.harness.known import entries


@dataclass(frozen=True, kw_only=True)
class Known:
    """A known difference between decoders. case: a block as hex; symptom: one of this fuzzer's
    symptoms, or `unsupported`."""

    id: str
    component: str  # name of an adapter
    version: str  # the version in which the difference was seen
    type: str
    case: str
    symptom: str
    sentence: str
    status: str  # "reported" or "not reported", and the result of a search for reports
    link: str


def known_divergences() -> list[Known]:
    return [Known(**row) for row in entries("dequant")]


def entry_for(known: Sequence[Known], component: str, type_name: str, symptom: str) -> Known | None:
    wanted = (component, type_name, symptom)
    return next((k for k in known if (k.component, k.type, k.symptom) == wanted), None)
