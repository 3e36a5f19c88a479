"""The text of --settings: a preset, single settings, or a file of them."""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lockstep.engine.choices import choices
from lockstep.harness.check.caches import UNQUANTISED, why_not_followed
from lockstep.harness.exit_codes import BadInput
from lockstep.harness.protocol.messages import MOST_SETTING, MOST_THREADS
from lockstep.harness.records import CACHE_TYPES, EXACT, PRESETS, Settings

MOST_BYTES = 1 << 16  # bytes of a settings file
SWITCH = {"on": True, "off": False}


def settings_named(text: str) -> Settings:
    """Return the settings that the text names: `default`, `cache=Q8_0,flash=on`,
    `default,threads=4` or a TOML file.

    Single settings change the preset `exact` unless the text names a preset. Raises BadInput.
    """
    if text in PRESETS:
        return PRESETS[text]
    if Path(text).is_file():
        return settings_from(read_file(Path(text)), text)
    given: dict[str, Any] = {}
    for part in text.split(","):
        key, sign, value = part.strip().partition("=")
        if not sign and key in PRESETS and not given:
            given["preset"] = key
        elif not sign or key in given:
            wanted = f"a preset ({', '.join(PRESETS)}), KEY=VALUE,... or a file"
            raise BadInput(f"--settings {text}: expected {wanted}, got {part!r}")
        else:
            given[key] = value
    return settings_from(given, text)


def read_file(path: Path) -> Mapping[str, Any]:
    if path.stat().st_size > MOST_BYTES:
        raise BadInput(f"{path}: expected at most {MOST_BYTES} bytes of settings")
    try:
        return tomllib.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path}: not a TOML file: {error}") from error


def settings_from(given: Mapping[str, Any], source: str) -> Settings:
    """Build settings from options. A quantised cache of values turns flash attention on, unless
    `flash` is among the options."""
    preset = str(given.get("preset", EXACT.name))
    if preset not in PRESETS:
        raise BadInput(f"--settings {source}: no preset named {preset!r} (known: exact, default)")
    found = PRESETS[preset]
    for key, value in given.items():
        if key == "preset":
            continue
        if key not in KEYS:
            raise BadInput(f"--settings {source}: no setting named {key!r} {choices(key, KEYS)}")
        found = replace(found, **KEYS[key](str(value), f"--settings {source}: {key}"))
    if found.type_v not in UNQUANTISED and "flash" not in given:
        found = replace(found, flash_attn=True)
    if why := why_not_followed(found):
        raise BadInput(f"--settings {source}: this {why}")
    return found


def cache_for(*fields: str) -> Callable[[str, str], dict[str, Any]]:
    def read(value: str, where: str) -> dict[str, Any]:
        if value.upper() not in CACHE_TYPES:
            raise BadInput(f"{where}: {value!r} is not a cache type {choices(value, CACHE_TYPES)}")
        return dict.fromkeys(fields, value.upper())

    return read


def read_flash(value: str, where: str) -> dict[str, Any]:
    text = {"true": "on", "false": "off"}.get(value.lower(), value.lower())
    if text not in SWITCH:
        raise BadInput(f"{where}: expected on or off, got {value!r}")
    return {"flash_attn": SWITCH[text]}


def number_for(field: str, most: int) -> Callable[[str, str], dict[str, Any]]:
    def read(value: str, where: str) -> dict[str, Any]:
        if not (value.isascii() and value.isdecimal() and 1 <= int(value[:12]) <= most):
            raise BadInput(f"{where}: expected a number from 1 to {most}, got {value!r:.40}")
        return {field: int(value)}

    return read


KEYS: dict[str, Callable[[str, str], dict[str, Any]]] = {
    "cache": cache_for("type_k", "type_v"),
    "cache_k": cache_for("type_k"),
    "cache_v": cache_for("type_v"),
    "flash": read_flash,
    "threads": number_for("n_threads", MOST_THREADS),
    "ctx": number_for("n_ctx", MOST_SETTING),
}
