"""Runs the command line in this process, for all tests of the command line."""

from tests.command_line import lockstep

__all__ = ["lockstep"]
