"""The place for a command's words: a terminal, a pipe, or nowhere."""

from typing import Protocol


class Output(Protocol):
    def line(self, text: str) -> None: ...
    def progress(self, case: str, text: str) -> None: ...
