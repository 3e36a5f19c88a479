"""The text of the option --settings."""

from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.harness.check.settings import settings_named
from lockstep.harness.exit_codes import BadInput
from lockstep.harness.records import DEFAULT, EXACT, Settings

CODED = replace(EXACT, type_k="Q8_0", type_v="Q8_0", flash_attn=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("exact", EXACT),
        ("default", DEFAULT),
        ("cache=q8_0", CODED),
        ("exact,cache=Q8_0,flash=on", CODED),
        ("default, threads=4,ctx=2048", replace(DEFAULT, n_threads=4, n_ctx=2048)),
        ("cache_k=BF16,flash=off", replace(EXACT, type_k="BF16")),
    ],
)
def test_text_gives_settings(text: str, expected: Settings) -> None:
    assert settings_named(text) == expected


def test_file_gives_settings(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('preset = "exact"\ncache = "Q8_0"\nflash = true\nthreads = 3\n')
    assert settings_named(str(path)) == replace(CODED, n_threads=3)


@pytest.mark.parametrize(
    "text",
    [
        *("fast", "cache", "cache=Q9", "flash=maybe", "threads=0", "threads=1e3", "ctx=-1"),
        *("cache=Q8_0,flash=off", "cache=F16,cache=F32", "threads=2,default", "speed=1", ""),
    ],
)
def test_wrong_text_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="--settings"):
        settings_named(text)


@pytest.mark.parametrize("raw", [b"cache = \xff", b"cache = ", b"cache = " + b"[" * 20_000])
def test_broken_file_is_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(raw)
    with pytest.raises(BadInput, match=r"mine\.toml"):
        settings_named(str(path))
