"""rich's console, which of its own accord ends a process with exit code 1 if its pipe is closed.

That is the code of a divergence.
"""

from rich.console import Console


class Screen(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError
