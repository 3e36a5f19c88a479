"""Commands in hints are complete, and appear only if they can find more."""

import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.check.check import Plan
from lockstep.harness.cli import app
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.records import (
    DEFAULT,
    EXACT,
    MADE_MODEL,
    EngineInfo,
    Settings,
    Status,
    Verdict,
)
from lockstep.harness.runs.hints import (
    LARGE,
    LARGE_FOR_MANY_RUNS,
    diagnose_of_a_slice,
    next_step,
    what_is_quicker,
)
from lockstep.harness.runs.result import RunResult
from tests.models import builtin, written
from tests.places import EXAMPLES
from tests.split_files import write_parts

EXAMPLE = EXAMPLES / "engine.py"
SHOWN = '"logits", "trace", "replace"'
LAYER, MISTAKE = "find the layer and the part: ", "name the mistake, if it is a known one: "
PLACE = "find the place, with a proof: "
BY_SLICES = "lockstep bisect m.gguf --engine ./mine --black-box"
BY_ANSWERS = "lockstep diagnose m.gguf --engine ./mine"


def plan_of_mine(folder: Path) -> Plan:
    """Return the plan for a program that exists."""
    path, command = Path("m.gguf"), folder / "mine"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    return Plan(
        case="m",
        model=path,
        subject_model=path,
        engine=str(command),
        settings=EXACT,
        command="m.gguf --engine ./mine",
    )


@pytest.mark.parametrize(
    ("levels", "suites", "lines"),
    [
        (("logits",), {"logits": "diverged"}, [LAYER + BY_SLICES, MISTAKE + BY_ANSWERS]),
        (("greedy",), {"decode": "diverged"}, [LAYER + BY_SLICES, MISTAKE + BY_ANSWERS]),
        (("logits",), {"logits": "agreed", "black-box": "diverged"}, [LAYER + BY_SLICES]),
        (("logits",), {"logits": "agreed", "long-context": "diverged"}, [LAYER + BY_SLICES]),
        (
            ("logits", "trace"),
            {"long-context": "diverged"},
            [f"{PLACE}lockstep bisect m.gguf --engine ./mine"],
        ),
        (("embed",), {"embeddings": "diverged"}, [MISTAKE + BY_ANSWERS]),
        (("embed",), {"embeddings": "agreed", "black-box": "diverged"}, []),
        (("generate",), {"text": "diverged"}, [MISTAKE + BY_ANSWERS]),
        (("tokenize",), {"tokens": "diverged"}, [MISTAKE + BY_ANSWERS]),
        (("parse",), {"metadata": "diverged"}, [MISTAKE + BY_ANSWERS]),
        (("generate",), {"text": "agreed"}, []),
        (("dequantize", "multiply"), {"dequant": "agreed"}, []),
        (("logits",), {"logits": "crashed"}, []),
        (("logits",), {"logits": "agreed", "black-box": "timed-out"}, []),
        (("logits",), {"logits": "agreed"}, [f"look closer without tensors: {BY_SLICES}"]),
    ],
)
def test_hints_are_complete_and_useful_commands(
    levels: tuple[str, ...], suites: dict[str, Status], lines: list[str], tmp_path: Path
) -> None:
    path, plan = Path("m.gguf"), plan_of_mine(tmp_path)
    shows = ("kq",) if "trace" in levels else ()
    verdicts = [
        Verdict(suite=suite, case="m", status=status, summary="")
        for suite, status in suites.items()
    ]
    infos = (
        EngineInfo(engine="llama.cpp", version="1"),
        EngineInfo(engine="mine", version="1", shows=shows, levels=levels),
    )
    code = exit_code(verdicts)
    result = RunResult(code=code, folder=path, verdicts=verdicts, engines=infos, seconds=0.0)
    acid = f"; lockstep check --suite acid --engine {plan.engine}"
    assert next_step([plan], result).replace(acid, "").splitlines() == lines


@pytest.mark.parametrize(
    ("settings", "status", "named"),
    [(DEFAULT, "agreed", True), (EXACT, "agreed", False), (DEFAULT, "crashed", False)],
)
def test_conforming_server_may_be_tested_with_exact_settings(
    settings: Settings, status: Status, named: bool
) -> None:
    """The error of an eps of 1e-6 instead of 1e-5 is within the noise of an F16 cache, but visible
    with an F32 cache."""
    url = "http://localhost:1"
    plan = Plan(
        case="m",
        model=Path("m.gguf"),
        subject_model=Path("m.gguf"),
        engine=url,
        settings=settings,
        command=f"m.gguf --engine {url} --settings {settings.name} --tokens 32",
    )
    verdicts = [Verdict(suite="logprobs", case="m", status=status, summary="")]
    code = exit_code(verdicts)
    result = RunResult(code=code, folder=Path("."), verdicts=verdicts, engines=(), seconds=0.0)
    command = f"lockstep check m.gguf --engine {url} --tokens 32 --settings exact"
    assert next_step([plan], result).endswith(command) == named
    assert bool(next_step([plan], result)) == named


@pytest.mark.parametrize("settings", [DEFAULT, EXACT])
def test_started_server_may_be_tested_with_exact_settings(
    settings: Settings,
) -> None:
    """An engine with an inexact sine conformed, even on probe models.

    An F32 cache would have shown the fault, but Lockstep printed this hint only for addresses.
    """
    engine = "serve:./mine -m {model} --port {port}"
    plan = Plan(
        case="m",
        model=Path("m.gguf"),
        subject_model=Path("m.gguf"),
        engine=engine,
        settings=settings,
        command=f"m.gguf --engine '{engine}' --settings {settings.name}",
    )
    infos = (EngineInfo(engine="mine", version="1", shows=(), levels=("logprobs", "generate")),)
    verdicts = [Verdict(suite="logprobs", case="m", status="agreed", summary="")]
    result = RunResult(code=0, folder=Path("."), verdicts=verdicts, engines=infos, seconds=0.0)
    *exactly, slices = next_step([plan], result).splitlines()
    assert slices.startswith("look closer without tensors: lockstep bisect m.gguf")
    assert [line.endswith("--settings exact") for line in exactly] == [True] * (settings == DEFAULT)


def test_bisection_hint_for_an_engine_without_tensors_has_whole_commands(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Hints omit a bisection with probe models if it cannot help."""
    model, mine = builtin("f32", tmp_path), tmp_path / "mine.py"
    text = EXAMPLE.read_text()
    assert SHOWN in text
    for offered, options, said in (
        (
            '"logits"',
            (),
            ["does not show tensors; find the layer", "--black-box; name the mistake"],
        ),
        ('"generate"', ("--black-box",), ["offers none of logits", "name the mistake"]),
    ):
        mine.write_text(text.replace(SHOWN, offered))
        command = f"{sys.executable} {mine}"
        args = ("--oracle", "reference", "--report", str(tmp_path / "r"), "-q")
        with pytest.raises(SystemExit) as end:
            app(["bisect", str(model), "--engine", command, *options, *args])
        err = capfd.readouterr().err
        assert end.value.code == 3
        assert all(words in err for words in said), err
        assert f"lockstep diagnose {model} --engine" in err
        assert err.count("lockstep bisect") == err.count("--black-box")


@pytest.mark.parametrize(
    ("n_layer", "size", "limit", "named"),
    [
        (3, LARGE, LARGE, True),
        (3, LARGE - 1, LARGE, False),
        (2, LARGE, LARGE, False),  # too few layers to cut
        (0, LARGE, LARGE, False),  # the file is no model
        (3, LARGE_FOR_MANY_RUNS, LARGE_FOR_MANY_RUNS, True),  # many runs on this model take minutes
        (3, LARGE_FOR_MANY_RUNS, LARGE, False),
    ],
)
def test_hint_names_the_command_for_first_layers_of_a_large_model(
    n_layer: int, size: int, limit: int, named: bool, tmp_path: Path
) -> None:
    path = tmp_path / "large one.gguf"
    if n_layer:
        written(tmp_path, path.name, n_layer=n_layer)
    of_size(path, size)
    command = f"lockstep slice '{path}' -o first.gguf"
    assert what_is_quicker(path, limit).endswith(command) is named
    again = path.rename(tmp_path / "first.gguf")  # the command must not replace the model itself
    assert what_is_quicker(again, limit).endswith("-o fewer.gguf") is named
    assert not any(map(what_is_quicker, (None, Path("builtin:f32"))))


def test_split_model_is_as_large_as_all_its_parts(tmp_path: Path) -> None:
    model = written(tmp_path, "m.gguf", n_layer=3)
    with GgufFile.open(model) as file:
        n = len(file.tensors)
    first, second = write_parts(model, tmp_path, (1, n - 1))
    assert not what_is_quicker(first)
    of_size(second, LARGE)
    assert what_is_quicker(first).endswith(f"lockstep slice {first} -o first.gguf")


@pytest.mark.parametrize(
    ("asked", "more", "lines"),
    [
        ("after prompt 6 of 10 in turn", {}, [LAYER + BY_SLICES, MISTAKE + BY_ANSWERS]),
        ("after prompt 6 of 10 in turn", {MADE_MODEL: True}, [LAYER + BY_SLICES]),
        ("the usual tokens", {"n_threads": 3}, [LAYER + BY_SLICES]),
    ],
)
def test_hint_proposes_no_diagnosis_on_a_made_model_or_with_more_threads(
    asked: str, more: dict[str, Any], lines: list[str], tmp_path: Path
) -> None:
    """An engine reused cached cells of the previous prompt, and selected them only by their number.

    `decode` found this fault on the first layer of SmolLM2. The hint proposed `diagnose`, which
    found all answers right.
    """
    path, plan = Path("m.gguf"), plan_of_mine(tmp_path)
    own = EngineInfo(engine="mine", version="1", shows=(), levels=("greedy",))
    detail = {"asked": asked, **more}
    wrong = Verdict(suite="decode", case="m", status="diverged", summary=asked, detail=detail)
    result = RunResult(code=1, folder=path, verdicts=[wrong], engines=(own,), seconds=0.0)
    assert next_step([plan], result).splitlines() == lines


def of_size(path: Path, size: int) -> None:
    """Make a sparse file of this size."""
    with path.open("ab") as file:
        file.truncate(size)


@pytest.mark.parametrize(
    ("model", "subject", "wrong", "cut"),
    [
        ("m.gguf", "m.gguf", [0, 1, 2, 3], "-o first.gguf;"),
        ("m.gguf", "m.gguf", [7], "-o first.gguf --layers 8;"),
        ("m.gguf", "m.gguf", [23], ""),  # the fault is in a late layer
        ("m.gguf", "m.gguf", [], ""),
        ("m.gguf", "other.gguf", [0], ""),
        ("builtin:f32", "builtin:f32", [0], ""),
    ],
)
def test_mistake_hidden_by_24_layers_is_searched_in_the_first_layers(
    model: str, subject: str, wrong: list[int], cut: str
) -> None:
    """An engine ignored the biases of queries in a Qwen2 with 24 layers in Q5_0. All answers were
    within the noise.

    Slices showed that every layer was wrong. On two layers, `diagnose` names the mistake.
    """
    plan = Plan(
        case="m",
        model=Path("m.gguf"),
        subject_model=Path("m.gguf" if subject == model else subject),
        engine="./mine",
        settings=EXACT,
        command=f"{model} --engine ./mine --oracle llama.cpp@0.3.8 --tokens 32",
    )
    found = diagnose_of_a_slice(plan, wrong, 24)
    rest = " lockstep diagnose first.gguf --engine ./mine --tokens 32"
    assert found == (f"lockstep slice m.gguf {cut}{rest}" if cut else "")
