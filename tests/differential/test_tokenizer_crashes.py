"""Texts that end llama.cpp's process, according to harness/known/divergences.toml, still do. Our
engine survives them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.context.runner import Runner
from lockstep.harness.known import entries
from lockstep.harness.records import EXACT, Crashed, Outcome
from lockstep.harness.synth.builtin import BUILTIN_VOCABULARIES
from tests.models import with_metadata

KNOWN = entries("crashes")
CASES = [(known, pre) for known in KNOWN for pre in known["pre"] or [""]]


def asked(engine: str, known: Mapping[str, Any], pre: str, folder: Path, times: int) -> Outcome:
    changes = {"tokenizer.ggml.pre": ("STR", pre)} if pre else {}
    recipe = BUILTIN_VOCABULARIES[known["vocabulary"]]
    path = with_metadata(folder / "vocabulary.gguf", recipe, **changes)
    with Runner().open(engine, path, EXACT) as session:
        return session.ask("tokenize", [bytes.fromhex(known["unit"]) * times])


@pytest.mark.parametrize(
    ("known", "pre"), CASES, ids=[f"{known['id']} {pre}".strip() for known, pre in CASES]
)
def test_known_crash_still_ends_the_process(
    known: Mapping[str, Any], pre: str, tmp_path: Path
) -> None:
    over = f"llama.cpp survives it: take {known['id']} ({pre}) out of harness/known"
    assert isinstance(asked("llama.cpp", known, pre, tmp_path, known["times"]), Crashed), over
    assert not isinstance(asked("reference", known, pre, tmp_path, known["times"]), Crashed)


@pytest.mark.parametrize(
    "known", [k for k in KNOWN if k["times"] > 1], ids=lambda known: known["id"]
)
def test_short_runs_of_one_character_do_not_crash(known: Mapping[str, Any], tmp_path: Path) -> None:
    for pre in known["pre"]:
        assert not isinstance(asked("llama.cpp", known, pre, tmp_path, 1000), Crashed)
