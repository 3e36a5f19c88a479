"""What is known of llama.cpp's graphs: the [[shadow]] entries of tests/known_divergences.toml."""

import tomllib
from pathlib import Path

FILE = Path(__file__).parents[2] / "tests" / "known_divergences.toml"


def known_crash(variant: str, preset: str, path: Path = FILE) -> str:
    """The entry about a variant as it is made, in words; empty without one, or without the file.

    A known crash is a crash still: nothing was compared.
    """
    if not path.is_file():
        return ""
    for entry in tomllib.loads(path.read_text()).get("shadow", ()):
        changed = entry["keys"] or entry["complete"]
        same = (entry["variant"], entry["settings"], entry["symptom"]) == (variant, preset, "crash")
        if same and not changed:
            return f"{entry['id']}: {entry['sentence']}"
    return ""
