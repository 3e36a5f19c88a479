"""README.md and the other pages mention only commands, options and files that exist."""

import re
from typing import Any

import pytest
import typer

from lockstep.harness.cli import app
from tests.places import ROOT

PAGES = (
    *(
        "README.md",
        "harness/examples/README.md",
        "harness/cli/README.md",
        "harness/acid/README.md",
    ),
    *(
        "reports/README.md",
        "reports/TRUST.md",
        "reports/SUITES.md",
        "reports/PLACES.md",
        "reports/CAMPAIGNS.md",
        "golden/README.md",
    ),
    *("ARCHITECTURE.md", "CONTRIBUTING.md"),
)
COMMAND = re.compile(r"(?<![\w./-])lockstep ([a-z][a-z-]*(?: [a-z][a-z-]*)?)([^`\n|#]*)")
# options of every command
BESIDES = ("--help",)


def commands() -> dict[str, Any]:
    """Return the commands by name, including those in groups."""
    found: dict[str, Any] = {}
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        found[name] = command
        for sub, each in getattr(command, "commands", {}).items():
            found[f"{name} {sub}"] = each
    return found


def problems(text: str) -> list[str]:
    """Return the wrong statements that a page makes about commands."""
    known, found = commands(), []
    code = "\n".join(re.findall(r"`[^`\n]+`|^\$? *lockstep .*$", text, re.MULTILINE))
    for words, rest in COMMAND.findall(code):
        name = words if words in known else words.split()[0]
        if name not in known:
            found.append(f"no command: lockstep {name}")
            continue
        options = {each for param in known[name].params for each in param.opts}
        if hasattr(known[name], "commands"):
            continue
        own = re.sub(r"'[^']*'|\"[^\"]*\"", "", rest)  # options of another program do not count
        said = [option.split("=")[0] for option in re.findall(r"(?<=\s)--[a-z][\w-]*", own)]
        found += [
            f"lockstep {name} has no {option}"
            for option in said
            if option not in options | {*BESIDES}
        ]
    return found


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_options_of_a_page_exist(page: str) -> None:
    assert problems((ROOT / page).read_text(encoding="utf-8")) == []


def test_unknown_command_or_option_is_noticed() -> None:
    assert problems("`lockstep chek a.gguf`") == ["no command: lockstep chek"]
    assert problems("lockstep check a --sete exact\n") == ["lockstep check has no --sete"]
    assert problems("so far lockstep is fine, `lockstep check a --settings exact`") == []


@pytest.mark.parametrize("page", PAGES)
def test_linked_files_of_a_page_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#\s]+)\)", text) if "://" not in link]
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 100
