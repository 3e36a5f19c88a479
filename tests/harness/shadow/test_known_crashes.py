"""Messages about a crash of llama.cpp that may come from a build with AMX."""

import pytest

from lockstep.harness.records import DEFAULT, EXACT, Settings
from lockstep.harness.shadow import known

DIED = "llama.cpp crashed in logits: the worker of llama.cpp was killed by SIGSEGV during logits"


@pytest.mark.parametrize(
    ("settings", "said", "has_amx", "hint"),
    [
        (DEFAULT, DIED, True, True),
        (EXACT, DIED, True, False),  # without AMX, weights are not repacked
        (DEFAULT, DIED.replace("SIGSEGV", "SIGABRT"), True, False),
        (DEFAULT, DIED, False, False),
    ],
    ids=["repacked weights", "weights as they are", "an abort", "a processor without"],
)
def test_crash_with_amx_in_use_points_to_doctor(
    settings: Settings, said: str, has_amx: bool, hint: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "has_amx", lambda: has_amx)
    assert ("lockstep doctor" in known.perhaps_amx(settings, said)) == hint


@pytest.mark.parametrize(
    ("types", "generic", "expected"),
    [
        ({"F16", "F32"}, ("F16", "AMX"), "amx-views"),
        ({"F16", "F32"}, ("F16",), ""),
        ({"Q8_0", "F32"}, ("AMX",), ""),
    ],
    ids=["with AMX", "without AMX", "of another type"],
)
def test_amx_crash_is_known_for_models_with_affected_weight_types(
    types: set[str], generic: tuple[str, ...], expected: str
) -> None:
    said = known.known_crash("deepseek2", "default", types, generic)
    assert said.partition(":")[0] == expected
