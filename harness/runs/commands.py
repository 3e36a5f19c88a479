"""The commands that repeat a plan, or examine it further."""

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.harness.check.check import Plan

OF_TEXTS = ("--steps", "--prompt")  # options that bisect lacks, because it generates nothing


def bisect_command(plan: "Plan") -> str:
    """Return the command that locates the difference between the engines of this plan."""
    return f"lockstep bisect {without(plan.command, *OF_TEXTS)}"


def diagnose_command(plan: "Plan") -> str:
    """Return the command that names the known mistake. It always compares with llama.cpp."""
    return f"lockstep diagnose {without(plan.command, '--oracle')}"


def without(command: str, *options: str) -> str:
    words = shlex.split(command)
    for option in options:
        if option in words:
            del words[(at := words.index(option)) : at + 2]
    return shlex.join(words)
