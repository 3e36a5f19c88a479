"""The help of every command, which imports no slow modules."""

import json

import pytest
from typer.main import get_command

from lockstep.harness.cli import app, golden
from tests.command_line import (
    Lockstep,
    in_a_process,
)

COMMANDS = sorted(get_command(app).commands)  # type: ignore[attr-defined]
GOLDEN_COMMANDS = sorted(get_command(golden.app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("given", [None, "3"])
def test_product_uses_one_thread_by_default(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads of small products mostly wait for each other on a busy machine."""
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    if given:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", given)
    code = "import atexit, os, sys; assert 'numpy' not in sys.modules\n"
    code += "atexit.register(lambda: print(os.environ['OPENBLAS_NUM_THREADS']))\n"
    code += "from lockstep.harness.cli import main; assert 'numpy' not in sys.modules; main()"
    assert in_a_process("--help", code=code).out.splitlines()[-1] == (given or "1")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, lockstep: Lockstep) -> None:
    ending = lockstep(command, "--help")
    assert ending.code == 0
    assert ending.err == ""
    assert f"{command} [OPTIONS]" in ending.out


@pytest.mark.parametrize("command", GOLDEN_COMMANDS)
def test_every_command_on_goldens_explains_itself(command: str, lockstep: Lockstep) -> None:
    ending = lockstep("golden", command, "--help")
    assert ending.code == 0
    assert f"golden {command} [OPTIONS]" in ending.out


def test_promised_commands_exist(lockstep: Lockstep) -> None:
    promised = {"check", "bisect", "trace", "run", "tokenize", "synth", "selftest", "doctor"}
    assert promised <= set(COMMANDS)
    text = lockstep("--help").out
    assert all(f"\n  {command} " in text for command in COMMANDS)


HEAVY = (
    "numpy",
    "numba",
    "llama_cpp",
    "gguf",
    "rich.console",
    "jsonschema",
    "lockstep.harness.check.check",
)


@pytest.mark.parametrize("args", [("--help",), ("check", "--help")], ids=" ".join)
def test_help_imports_no_heavy_module(args: tuple[str, ...]) -> None:
    code = (
        "import sys\nfrom lockstep.harness.cli import main\n"
        "try:\n    main()\nfinally:\n"
        f"    print(sorted(set(sys.modules) & set({HEAVY!r})), file=sys.stderr)"
    )
    ending = in_a_process(*args, code=code)
    assert "Usage:" in ending.out
    loaded = set(json.loads(ending.err.replace("'", '"')))
    # typer's own help may use rich; other imports must be avoided
    assert loaded <= {"rich.console"}


def test_import_check_finds_a_heavy_module() -> None:
    code = f"import sys, numpy; print(set(sys.modules) & set({HEAVY!r}), file=sys.stderr)"
    assert "numpy" in in_a_process(code=code).err
