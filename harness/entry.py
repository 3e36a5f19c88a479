"""The command `lockstep`. An interrupt during imports prints no traceback. A defect during imports
never ends with exit code 1, which means a divergence."""

import os
import signal
import traceback
from contextlib import suppress
from typing import Any


def end_at_once(*_: Any) -> None:
    os._exit(130)


signal.signal(signal.SIGINT, end_at_once)


def main() -> None:
    try:
        from lockstep.harness.cli import main as run
    except Exception as error:
        with suppress(OSError):  # the disk may be full
            traceback.print_exception(error)
        os._exit(2)
    run()
