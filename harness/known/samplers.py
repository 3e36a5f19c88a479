"""Known faults of llama.cpp's samplers: the table [[sampler]] of the known divergences."""

from typing import Any

from lockstep.engine.samplers.parts.ways import Accident
from lockstep.harness.known import entries


def entry_of_accident(accident: Accident) -> dict[str, Any]:
    """Return the entry of a known fault. Each fault in our copy of llama.cpp's samplers has an
    entry."""
    return next(each for each in entries("sampler") if each["accident"] == accident.name)


def describe_accident(accident: Accident) -> str:
    entry = entry_of_accident(accident)
    return f"{entry['id']}: {entry['sentence']}"
