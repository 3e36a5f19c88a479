"""The pytest plugin in a user's repository has one test for each model and suite, with true
results."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.harness.blackbox.whole import SMALL
from lockstep.harness.check.check import suites_named
from lockstep.harness.runs.pytest_plugin import SUITES
from lockstep.harness.runs.run import builtin_model
from lockstep.harness.synth.llama import LlamaRecipe, write_llama
from tests.places import EXAMPLES

PASSES = "def test_of_theirs():\n    assert True\n"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("models")
    write_llama(LlamaRecipe(seed=11, n_layer=1), folder / "second.gguf")
    return [builtin_model("f32", folder), folder / "second.gguf"]


def pytest_in(folder: Path, *options: str) -> tuple[int, str]:
    """Run pytest in a new process, with or without the plugin installed; return exit code and
    output."""
    asked = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    loaded = [] if is_installed() else ["-p", "lockstep.harness.runs.pytest_plugin"]
    command = [*asked, *loaded, *options]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stdout + done.stderr


def is_installed() -> bool:
    from importlib.metadata import entry_points

    return any(
        each.value == "lockstep.harness.runs.pytest_plugin"
        for each in entry_points(group="pytest11")
    )


def engine(name: str) -> str:
    return shlex.join([sys.executable, str(EXAMPLES / name)])


def test_two_models_run_side_by_side(models: list[Path], tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(PASSES)
    given = [option for model in models for option in ("--lockstep-model", str(model))]
    suites = [f"--lockstep-suite={name}" for name in ("logits", "trace", "tokens")]
    code, said = pytest_in(
        tmp_path, "--lockstep-engine", engine("engine.py"), *given, *suites, "-n", "2"
    )
    assert "5 passed" in said, said
    assert "2 failed" in said  # the user named suites that the engine does not offer
    assert "does not offer tokenize" in said
    assert code == 1
    (session,) = (tmp_path / "reports").iterdir()
    assert f"reports: reports/{session.name}/*/*/report.jsonl" in said
    assert {folder.name for folder in session.iterdir()} == {
        f"{model.name}-{suite}" for model in models for suite in ("logits", "trace", "tokens")
    }
    assert len(list(session.glob("*/*/report.jsonl"))) == 6


def test_wrong_engine_fails_with_its_finding_and_no_traceback(
    models: list[Path], tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text((EXAMPLES / "engine.py").read_text().replace("+ self.eps", "+ 2 * self.eps"))
    options = ["--lockstep-engine", shlex.join([sys.executable, str(wrong)])]
    options += ["--lockstep-model", str(models[0]), "--lockstep-suite", "trace"]
    options += ["--lockstep-settings", "threads=2"]
    code, said = pytest_in(tmp_path, *options)
    assert code == 1, said
    assert "RMS_NORM" in said
    assert "lockstep bisect " in said
    assert "lockstep[f32.gguf-trace]" in said
    assert "Traceback" not in said
    assert "pytest_plugin.py:" not in said


def test_plugin_has_a_test_of_every_suite_about_the_engine() -> None:
    assert [suite.name for suite in suites_named(()) if not suite.of_oracle_alone] == list(SUITES)


def test_fault_on_made_models_fails_the_plugin_as_in_check(
    models: list[Path], tmp_path: Path
) -> None:
    """A slightly wrong eps is lost in the noise of the engine's usual logits."""
    text = (EXAMPLES / "engine.py").read_text().replace("+ self.eps", "+ 1.05 * self.eps")
    (tmp_path / "mine.py").write_text(text.replace('"logits", "trace", "replace"', '"logits"'))
    mine = shlex.join([sys.executable, str(tmp_path / "mine.py")])
    given = ["--lockstep-engine", mine, "--lockstep-model", str(models[1])]
    suites = ["--lockstep-suite", "logits", "--lockstep-suite", "black-box"]
    code, said = pytest_in(tmp_path, *given, *suites, "-v")
    assert "lockstep[second.gguf-logits] PASSED" in said, said
    assert SMALL in said
    assert "1 failed, 1 passed" in said
    assert code == 1


def test_fixture_runs_the_requested_checks(models: list[Path], tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(
        f"def test_mine(lockstep):\n"
        f"    lockstep({str(models[0])!r}, engine={engine('engine.py')!r}, suites=('logits',))\n"
    )
    code, said = pytest_in(tmp_path)
    assert "1 passed" in said, said
    assert code == 0


def test_suite_that_an_engine_lacks_is_skipped_without_success(
    models: list[Path], tmp_path: Path
) -> None:
    text = (EXAMPLES / "engine.py").read_text()
    (tmp_path / "mine.py").write_text(text.replace('"logits", "trace", "replace"', '"logits"'))
    mine = shlex.join([sys.executable, str(tmp_path / "mine.py")])
    given = ["--lockstep-engine", mine, "--lockstep-model", str(models[0])]
    code, said = pytest_in(tmp_path, *given, "-n", "1")  # the worker of xdist reports the reason
    assert f"2 passed, {len(SUITES) - 2} skipped" in said, said
    assert "mine.py does not show tensors" in said
    assert code == 0
    wanted = ["--lockstep-suite", "trace", "--lockstep-suite", "tokens"]
    code, said = pytest_in(tmp_path, *given, *wanted)
    assert "2 failed" in said, said
    assert code == 1
    (tmp_path / "mine.py").write_text(text.replace('"logits", "trace", "replace"', ""))
    code, said = pytest_in(tmp_path, *given)
    assert f"{len(SUITES)} skipped" in said, said
    assert "nothing was compared" in said
    assert code == pytest.ExitCode.NO_TESTS_COLLECTED


def test_only_a_listed_divergence_passes(models: list[Path], tmp_path: Path) -> None:
    text = (EXAMPLES / "engine.py").read_text()
    right = "x[..., 0::2], x[..., 1::2]"
    assert right in text
    (tmp_path / "mine.py").write_text(text.replace(right, "*np.split(x, 2, -1)"))
    key = {"case": models[0].name, "suite": "logits", "key": "logits/value/subject"}
    listed = tmp_path / "known.json"
    listed.write_text(json.dumps({"known": [key | {"reason": "issue 12"}]}))
    mine = shlex.join([sys.executable, str(tmp_path / "mine.py")])
    given = ["--lockstep-engine", mine, "--lockstep-model", str(models[0])]
    only = ["--lockstep-suite", "logits", "--lockstep-known", str(listed)]
    code, said = pytest_in(tmp_path, *given, *only)
    assert "1 passed" in said, said
    assert code == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--lockstep-model", "m.gguf"], "needs --lockstep-engine"),
        (["--lockstep-engine", "./mine"], "needs --lockstep-model"),
        (["--lockstep-engine", "./mine", "--lockstep-model", "m.gguf"], "m.gguf: no such file"),
        (["--lockstep-settings", "cache=Q8_9"], "'Q8_9'"),
    ],
)
def test_conflicting_options_are_refused(options: list[str], words: str, tmp_path: Path) -> None:
    code, said = pytest_in(tmp_path, *options)
    assert code == 4
    assert words in said


def test_plugin_without_its_options_does_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(PASSES)
    code, said = pytest_in(tmp_path)
    assert "1 passed" in said
    assert "report.jsonl" not in said
    assert "lockstep[" not in said
    assert not list(tmp_path.glob("**/report.jsonl"))
    assert code == 0
