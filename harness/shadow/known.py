"""Known faults of llama.cpp's graphs: the table [[shadow]] of harness/known."""

from collections.abc import Collection

from lockstep.harness.asking.environments import has_amx
from lockstep.harness.context.suite import Context
from lockstep.harness.known import entries
from lockstep.harness.records import Settings


def known_crash(
    variant: str, preset: str, types: Collection[str] = ("F32",), generic: Collection[str] = ()
) -> str:
    """Return the known crash of a generated variant as text; "" if there is none. `types` are the
    types of its weights. `generic` are the differences of the build, as in Build. The verdict on a
    known crash is still a crash, because nothing was compared."""
    for entry in entries("shadow"):
        changed = entry["keys"] or entry["complete"] or "tokens" in entry
        same = variant in (entry["variant"], *entry.get("also", ()))
        same = same and (entry["settings"], entry["symptom"]) == (preset, "crash")
        same = same and ("quant" not in entry or entry["quant"] in types)
        built = "needs" not in entry or entry["needs"] in generic
        if same and built and not changed:
            return f"{entry['id']}: {entry['sentence']}"
    return ""


def known_crash_of(context: Context) -> str:
    """Return the known crash on a user's model; "" if there is none."""
    types = {tensor.type.name for tensor in context.file.tensors.values()}
    settings = context.settings
    return known_crash(context.facts.architecture, settings.name, types, settings.generic)


def perhaps_amx(settings: Settings, said: str) -> str:
    """Return a clause if a crash may come from a build whose AMX is not set up; else ""."""
    dies = settings.repack and "SIGSEGV" in said and has_amx()
    return "; this may be gcc-amx-tiles: lockstep doctor tests this build for it" if dies else ""
