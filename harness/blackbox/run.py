"""A black-box bisection as work for another process."""

from pathlib import Path
from tempfile import TemporaryDirectory

from lockstep.engine.errors import EngineError
from lockstep.harness.blackbox.asking import SliceAsker
from lockstep.harness.blackbox.bisection import bisect_black_box
from lockstep.harness.check.check import BadInput, Plan, preflight
from lockstep.harness.parallel.children import Say


def bisect_one(plan: Plan, folder: Path, say: Say) -> None:
    """Bisect. Pass the progress messages to `say` as text, and then the result. folder: the folder
    for probe models."""
    preflight(plan)
    with TemporaryDirectory(dir=folder) as inside:
        asker = SliceAsker(plan=plan, folder=Path(inside), progress=say)
        try:
            say(bisect_black_box(asker))
        except EngineError as error:
            raise BadInput(str(error)) from error
        finally:
            asker.close()
