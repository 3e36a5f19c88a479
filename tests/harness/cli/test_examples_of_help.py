"""The help of every command has an example, and the command line accepts every example."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.main import get_command

from lockstep.harness.cli import app

# click's class of errors in options, from typer's own copy of click or from click
UsageError = typer.BadParameter.__base__


def commands(command: Any, name: str = "lockstep") -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for word, inner in command.commands.items():
            yield from commands(inner, f"{name} {word}")
    else:
        yield name, command


COMMANDS = dict(commands(get_command(app)))
EXAMPLES = [
    (name, line)
    for name, command in COMMANDS.items()
    for line in re.findall(r"^ {2,}(lockstep .*)$", command.help or "", re.M)
]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_has_an_example(name):
    assert any(of == name and line.startswith(name) for of, line in EXAMPLES)


@pytest.mark.parametrize("line", [line for _, line in EXAMPLES])
def test_command_line_accepts_every_example(line):
    parsed(line)


def test_example_with_an_unknown_option_is_refused():
    with pytest.raises(UsageError, match="--no-such"):
        parsed("lockstep check model.gguf --no-such")


def parsed(line: str) -> None:
    """Parse a command line without running it. Raises UsageError."""
    plain = re.sub(r"\$\(.*?\)", "model.gguf", re.split(r" [|>] ", line)[0])
    (_, *words), command = shlex.split(plain, comments=True), get_command(app)
    while hasattr(command, "commands"):
        context = command.make_context(command.name, list(words))
        _, command, words = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
    command.make_context(command.name, words)
