"""The interface for a command's output: a terminal, a pipe, or nothing."""

from typing import Protocol


class Output(Protocol):
    def line(self, text: str) -> None: ...
    def progress(self, case: str, text: str) -> None: ...
