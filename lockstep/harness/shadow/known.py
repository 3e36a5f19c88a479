"""What is known of llama.cpp's graphs: [[shadow]] of harness/known."""

from lockstep.harness.known import entries


def known_crash(variant: str, preset: str) -> str:
    """The entry about a variant as it is made, in words; empty without one.

    A known crash is a crash still: nothing was compared.
    """
    for entry in entries("shadow"):
        changed = entry["keys"] or entry["complete"] or "tokens" in entry
        same = (entry["variant"], entry["settings"], entry["symptom"]) == (variant, preset, "crash")
        if same and not changed:
            return f"{entry['id']}: {entry['sentence']}"
    return ""
