"""A user's Python class is an engine. It runs in its own process and is untrusted."""

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from lockstep.engine.errors import Unsupported
from lockstep.harness.adapters.parts.users import find_registered, registered_names
from lockstep.harness.check.check import BadInput
from lockstep.harness.cli import app
from lockstep.harness.context.runner import IsolatedSession, Runner, is_outside
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.records import EXACT, Answered, Crashed, Unanswerable, Verdict
from tests.harness.check.test_check import plan_for, verdicts_of
from tests.models import builtin

HONEST = """
    from lockstep.engine.model import Model
    from lockstep.engine.ops.fast.ops import Fast
    from lockstep.harness.adapters.base import Adapter
    from lockstep.harness.records import Evaluation

    class Mine(Adapter):
        def evaluate(self, request):
            model = Model(self.model, Fast())
            memory = model.new_memory()
            runs = (model.decode(batch, memory) for batch in request.batches)
            return Evaluation(logits=tuple(runs), trace=None)
"""
EMPTY = """
    from lockstep.harness.adapters.base import Adapter

    class {}(Adapter, name="{}"):
        pass
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return builtin("f32", tmp_path_factory.mktemp("models"))


def written(folder: Path, source: str, name: str = "mine.py") -> Path:
    path = folder / name
    path.write_text(dedent(source))
    return path


def checked(model: Path, engine: str, *suites: str) -> list[Verdict]:
    return verdicts_of(plan_for(model, engine=engine, suites=suites, n_steps=3))


def why(engine: str, model: Path | None = None) -> str:
    with Runner(time_limit=60).open(engine, model, EXACT) as session:
        outcome = session.ask("describe")
    assert isinstance(outcome, Unanswerable), outcome
    return outcome.message


# --- files and modules ----------------------------------------------------------------------------


def test_class_in_a_file_is_asked_only_for_methods_that_it_defines(
    model: Path, tmp_path: Path
) -> None:
    found = checked(model, f"adapter:{written(tmp_path, HONEST)}")
    status = {v.suite: v.status for v in found}
    assert status.pop("shadow") == "excused"  # this suite is only about the oracle
    assert status.pop("logits") == "agreed"
    assert {*status.values()} == {"not-applicable"}, status
    assert exit_code(found) == 0


def test_a_wrong_class_diverges(model: Path, tmp_path: Path) -> None:
    wrong = HONEST.replace("tuple(runs)", "tuple(run * 1.01 for run in runs)")
    (found,) = checked(model, f"adapter:{written(tmp_path, wrong)}", "logits")
    assert (found.status, found.detail["at_fault"]) == ("diverged", "subject")


def test_module_is_found_in_the_working_directory(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, HONEST, "mine_as_module.py")
    monkeypatch.chdir(tmp_path)
    (found,) = checked(model, "adapter:mine_as_module", "logits")
    assert found.status == "agreed"
    assert "mine_as_module" not in sys.modules  # only the worker imported it


def test_file_named_like_our_package_does_not_replace_it(model: Path, tmp_path: Path) -> None:
    for name in ("engine.py", "harness.py"):
        (found,) = checked(model, f"adapter:{written(tmp_path, HONEST, name)}", "logits")
        assert found.status == "agreed"


def test_a_file_may_import_its_neighbours(model: Path, tmp_path: Path) -> None:
    written(tmp_path, HONEST, "neighbour.py")
    path = written(tmp_path, "from neighbour import Mine\n")
    with Runner(time_limit=60).open(f"adapter:{path}", model, EXACT) as session:
        assert isinstance(session.ask("describe"), Answered)


def test_file_with_several_classes_needs_the_name_of_one(tmp_path: Path) -> None:
    path = written(tmp_path, EMPTY.format("A", "a") + EMPTY.format("B", "b"))
    assert f"several engines: A, B; name one: {path}:A" in why(f"adapter:{path}")
    assert "has no engine 'C' (known: A, B)" in why(f"adapter:{path}:C")
    with Runner(time_limit=60).open(f"adapter:{path}:B", None, EXACT) as session:
        outcome = session.ask("describe")
    assert isinstance(outcome, Answered)
    assert outcome.value.levels == ()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = 1\n", "defines no subclass of lockstep.Adapter"),
        ("import nothing_of_that_name\n", "ModuleNotFoundError: No module named 'nothing_of"),
        ("def f(:\n", "SyntaxError"),
        ("\n\n1 / 0\n", r"ZeroDivisionError: division by zero (mine.py, line 3)"),
        ("import sys\nsys.exit('no licence')\n", "SystemExit: no licence"),
        (
            EMPTY.format("A", "x") + EMPTY.format("B", "x"),
            "TypeError: 'x' is already lockstep_user_mine",
        ),
    ],
)
def test_failed_import_is_reported_in_one_sentence(source: str, words: str, tmp_path: Path) -> None:
    said = why(f"adapter:{written(tmp_path, source)}")
    assert words in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("init", "words"),
    [
        ("(self): pass", "TypeError: Mine.__init__() takes 1 positional argument but 3 were given"),
        ("(self, *a): raise KeyError('no licence')", "KeyError: 'no licence'"),
    ],
)
def test_failing_constructor_is_a_crash_that_shows_the_users_lines(
    init: str, words: str, tmp_path: Path
) -> None:
    source = "from lockstep.harness.adapters.base import Adapter\nclass Mine(Adapter):\n"
    path = written(tmp_path, f"{source}    def __init__{init}\n")
    with Runner(time_limit=60).open(f"adapter:{path}", None, EXACT) as session:
        outcome = session.ask("describe")
    assert isinstance(outcome, Crashed)
    assert outcome.message.startswith(words)
    assert "worker.py" not in outcome.message
    assert "Traceback" not in outcome.message


def test_users_init_need_not_call_ours(model: Path, tmp_path: Path) -> None:
    silent = dedent(HONEST) + "\n    def __init__(self, model, settings):\n        pass\n"
    found = checked(model, f"adapter:{written(tmp_path, silent)}", "logits")
    assert {v.status for v in found} == {"agreed"}


def test_modified_engine_of_ours_shows_its_tensors(model: Path, tmp_path: Path) -> None:
    source = """
        from lockstep.harness.adapters.reference import Reference

        class Mine(Reference, name="mine"):
            pass
    """
    (trace,) = checked(model, f"adapter:{written(tmp_path, source)}", "trace")
    assert trace.status == "agreed"


def test_file_that_only_imports_the_base_class_defines_no_engine(tmp_path: Path) -> None:
    source = "from lockstep.harness.adapters.base import Adapter\n"
    said = why(f"adapter:{written(tmp_path, source)}")
    assert "defines no subclass" in said
    assert "lockstep protocol --guide" in said


def test_missing_file_and_module_are_reported(model: Path) -> None:
    assert why("adapter:./nothing.py") == "./nothing.py: no such file"
    assert "No module named 'nothing_here'" in why("adapter:nothing_here")
    with pytest.raises(BadInput, match=r"nothing\.py: no such file"):
        checked(model, "adapter:./nothing.py", "logits")


def test_class_that_dies_or_fails_is_a_crash(model: Path, tmp_path: Path) -> None:
    for line, words in (("os._exit(7)", "exited with status 7"), ("1 / 0", "ZeroDivisionError")):
        source = HONEST.replace("model = Model(", f"import os; {line}\n            model = Model(")
        (found,) = checked(model, f"adapter:{written(tmp_path, source)}", "logits")
        assert (found.status, exit_code([found])) == ("crashed", 3)
        assert words in found.summary


def test_engine_output_goes_to_its_log(model: Path, tmp_path: Path) -> None:
    source = HONEST.replace("model = Model(", "print('hello'); 1 / 0\n            model = Model(")
    path = written(tmp_path, source)
    with Runner(time_limit=60).open(f"adapter:{path}", model, EXACT) as session:
        assert isinstance(session.ask("describe"), Answered)
        outcome = session.ask("greedy", [1], 1)
        assert outcome == Unanswerable(message="Mine does not offer greedy", declared=True)


# --- entry points ---------------------------------------------------------------------------------


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Provide a package that registers two engine names, one of which is ours."""
    written(tmp_path, HONEST, "their_engine.py")
    info = tmp_path / "their_engine-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-engine\nVersion: 1\n")
    rows = "theirs = their_engine:Mine\nreference = their_engine:Mine\n"
    (info / "entry_points.txt").write_text(f"[lockstep.engines]\n{rows}")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield
    importlib.invalidate_caches()


@pytest.mark.usefixtures("installed")
def test_an_installed_package_registers_an_engine_by_name(model: Path) -> None:
    (found,) = checked(model, "theirs", "logits")
    assert found.status == "agreed"
    assert is_outside("theirs")
    assert registered_names() == ["reference", "theirs"]


@pytest.mark.usefixtures("installed")
def test_newly_installed_or_removed_package_is_noticed(tmp_path: Path) -> None:
    assert find_registered("later") is None
    info = tmp_path / "later-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: later\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[lockstep.engines]\nlater = their_engine:Mine\n")
    assert registered_names() == ["later", "reference", "theirs"]
    shutil.rmtree(info)
    assert find_registered("later") is None


@pytest.mark.usefixtures("installed")
def test_users_cannot_take_our_engine_names(model: Path) -> None:
    assert find_registered("reference") is find_registered("mutant:wrong-eps") is None
    assert not isinstance(Runner().open("reference", model, EXACT), IsolatedSession)


@pytest.mark.usefixtures("installed")
def test_two_packages_with_one_name_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "other-1.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (other / "entry_points.txt").write_text("[lockstep.engines]\ntheirs = other:Mine\n")
    importlib.invalidate_caches()
    with pytest.raises(Unsupported, match=r"several packages register .*: other, their-engine"):
        Runner().open("theirs", None, EXACT)


# --- the command line -----------------------------------------------------------------------------


def test_option_adapter_takes_a_file_and_excludes_option_engine(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, HONEST)
    options = ["check", str(model), "--adapter", str(path), "--suite", "logits", "--quiet"]
    with pytest.raises(SystemExit) as end:
        app([*options, "--oracle", "reference", "--tokens", "5", "--report", str(tmp_path)])
    assert end.value.code == 0, capfd.readouterr()
    with pytest.raises(SystemExit) as end:
        app([*options, "--engine", "fast"])
    assert end.value.code == 2
    assert "--adapter and --engine both name" in capfd.readouterr().err


def test_crash_is_not_reported_as_a_missing_engine(model: Path, tmp_path: Path) -> None:
    path = written(tmp_path, "import os\nos._exit(3)\n")
    with Runner(time_limit=60).open(f"adapter:{path}", model, EXACT) as session:
        assert isinstance(session.ask("describe"), Crashed)
