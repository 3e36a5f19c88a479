"""Known faults of llama.cpp's samplers, from the table [[sampler]] of the known divergences."""

from typing import Any

from lockstep.engine.samplers.parts.ways import Accident
from lockstep.harness.known import entries


def entry_of_accident(accident: Accident) -> dict[str, Any]:
    """Return the entry of a known fault. Each fault that our samplers copy from llama.cpp's has an
    entry."""
    return next(each for each in entries("sampler") if each["accident"] == accident.name)


def describe_accident(accident: Accident) -> str:
    entry = entry_of_accident(accident)
    return f"{entry['id']}: {entry['sentence']}"
