"""The engines of `harness/examples/` are honest, and a wrong version is found at its op."""

import json
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest

from lockstep.engine.batch import Batch
from lockstep.harness import protocol
from lockstep.harness.check.check import Plan
from lockstep.harness.parallel.works import Forks
from lockstep.harness.protocol.messages import QUESTIONS, start
from lockstep.harness.protocol.program import EngineProgram
from lockstep.harness.protocol.session import ProgramSession
from lockstep.harness.protocol.smoke import smoke
from lockstep.harness.records import EXACT, Request
from lockstep.harness.runs.result import RunResult
from lockstep.harness.runs.run import Listener, builtin_model, run_plans
from tests.places import EXAMPLES
from tests.plans import bisection_of, plan_of


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def plan_for(model: Path, engine: str, *suites: str) -> Plan:
    return plan_of(model, engine, suites=suites, n_tokens=12, n_steps=6)


def checked(plan: Plan, folder: Path) -> RunResult:
    return run_plans([plan], folder, ["lockstep"], Forks(1), Listener())


def agreed(result: RunResult) -> set[str]:
    return {v.suite for v in result.verdicts if v.status == "agreed"}


def python(script: Path) -> str:
    return shlex.join([sys.executable, str(script)])


def test_the_python_example_conforms(models: Path, tmp_path: Path) -> None:
    suites = ("logits", "trace", "products")
    plan = plan_for(builtin_model("f32", models), python(EXAMPLES / "engine.py"), *suites)
    result = checked(plan, tmp_path)
    assert result.code == 0
    assert agreed(result) == set(suites)


def test_example_with_wrong_rope_is_found(models: Path, tmp_path: Path) -> None:
    text = (EXAMPLES / "engine.py").read_text()
    wrong = text.replace("x[..., 0::2], x[..., 1::2]", "*np.split(x, 2, -1)")
    assert wrong.count("np.split") == 1
    script = tmp_path / "wrong.py"
    script.write_text(wrong)
    found = bisection_of(plan_for(builtin_model("f32", models), python(script)))
    assert found.first is not None
    assert (found.first.op, str(found.first.site)) == ("ROPE", "Qcur_rope-0")
    assert found.first.at_fault == "subject"
    assert {culprit.op for culprit in found.culprits} == {"ROPE"}
    assert found.patched is not None
    assert found.patched.confirms


@needs("node")
def test_the_javascript_example_conforms(models: Path, tmp_path: Path) -> None:
    suites = ("metadata", "logits", "decode")
    engine = shlex.join(["node", str(EXAMPLES / "engine.mjs")])
    result = checked(plan_for(builtin_model("f32", models), engine, *suites), tmp_path)
    assert result.code == 0
    assert agreed(result) == set(suites)


@pytest.fixture(scope="module")
def engine_in_c(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("c") / "engine"
    command = [
        "cc",
        "-O2",
        "-Wall",
        "-Werror",
        "-o",
        str(program),
        str(EXAMPLES / "engine.c"),
        "-lm",
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return program


@needs("cc")
def test_c_example_decodes_every_weight_correctly(
    models: Path, tmp_path: Path, engine_in_c: Path
) -> None:
    plan = plan_for(builtin_model("q4_0", models), str(engine_in_c), "dequant")
    result = checked(plan, tmp_path)
    assert result.code == 0
    assert agreed(result) == {"dequant"}


@needs("cc")
def test_smoke_lists_the_levels_of_the_c_example(models: Path, engine_in_c: Path) -> None:
    model = builtin_model("f32", models)
    command = [str(engine_in_c)]
    with ProgramSession(command, model, EXACT, time_limit=60, memory_limit=None) as session:
        steps = list(smoke(session))
    assert [s.level for s in steps if s.status == "works"] == ["start", "dequantize", "multiply"]
    assert {s.status for s in steps} == {"works", "not offered"}


def test_examples_are_short() -> None:
    for path in sorted(EXAMPLES.glob("engine.*")):
        assert len(path.read_text().splitlines()) <= 150, path.name


@pytest.mark.parametrize("command", [["node", "engine.mjs"], [sys.executable, "engine.py"]])
def test_answers_of_an_example_match_the_schema(command: list[str], models: Path) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(
            f"{command[0]} is not installed: its answers were not checked against the schema"
        )
    schema = json.loads((Path(protocol.__file__).parents[1] / "schemas/protocol.json").read_text())
    model = str(builtin_model("f32", models))
    program = EngineProgram([command[0], str(EXAMPLES / command[1])], None)
    try:
        introduction = program.exchange(start(model, EXACT), time.monotonic() + 60).head
        request = Request(batches=(Batch.of([1, 2]),))
        run = program.exchange(QUESTIONS["evaluate"].send(request), time.monotonic() + 60).head
    finally:
        program.kill()
    for ask, head in (("start", introduction), ("logits", run)):
        jsonschema.validate(head, schema)
        own = {"$ref": f"#/$defs/answer-{ask}", "$defs": schema["$defs"]}
        jsonschema.validate(head["answer"], own)
