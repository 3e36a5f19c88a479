"""Runs the command line in this process, for every test of it."""

from tests.command_line import lockstep

__all__ = ["lockstep"]
