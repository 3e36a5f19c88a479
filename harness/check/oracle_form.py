"""The settings with which llama.cpp runs as the oracle of an engine under test."""

from dataclasses import replace
from enum import Enum, auto

from lockstep.harness.check.caches import UNQUANTISED
from lockstep.harness.records import LORA, Settings


class OracleForm(Enum):
    """A way to run llama.cpp as the oracle of an engine under test."""

    USUAL = auto()
    MERGED = auto()  # the oracle's file has the LoRA files merged into its weights
    UNTURNED = auto()  # heads in the oracle's quantised cache are not rotated

    def settings_for(self, settings: Settings) -> Settings:
        """Return the oracle's settings, given the settings of the engine under test."""
        if self is OracleForm.MERGED:
            kept = tuple(each for each in settings.adapters if each.kind != LORA)
            return replace(settings, adapters=kept)
        return replace(settings, turned=self is not OracleForm.UNTURNED)


def other_forms(settings: Settings) -> list[OracleForm]:
    """Return the other forms in which an honest engine may compute these settings."""
    found = [OracleForm.MERGED] if settings.files_of(LORA) else []
    if not {settings.type_k, settings.type_v} <= {*UNQUANTISED}:
        found.append(OracleForm.UNTURNED)
    return found
