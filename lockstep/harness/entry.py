"""The command `lockstep`: an interrupt while everything is being imported is no traceback."""

import os
import signal
from typing import Any


def end_at_once(*_: Any) -> None:
    os._exit(130)


signal.signal(signal.SIGINT, end_at_once)


def main() -> None:
    from lockstep.harness.cli import main as run

    run()
