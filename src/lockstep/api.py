"""The public names: `Adapter` and the types that it returns, and `check` for scripts.

Users import them from `lockstep`. Everything else may change from version to version.
"""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.engine.batch import Batch
from lockstep.engine.errors import EngineError, Unsupported
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.exit_codes import BadInput
from lockstep.harness.records import (
    EngineInfo,
    Evaluation,
    FileSummary,
    Request,
    Settings,
    Site,
    TensorRecord,
    TensorSummary,
    Trace,
    Verdict,
)

if TYPE_CHECKING:
    from lockstep.harness.runs.result import RunResult

__all__ = [
    "Adapter",
    "BadInput",
    "Batch",
    "EngineError",
    "EngineInfo",
    "Evaluation",
    "FileSummary",
    "Request",
    "Settings",
    "Site",
    "TensorRecord",
    "TensorSummary",
    "Trace",
    "Unsupported",
    "Verdict",
    "check",
]


def check(
    model: str | PathLike[str],
    engine: str,
    *,
    suites: Sequence[str] = (),
    settings: str | None = None,
    oracle: str = "llama.cpp",
    tokens: int = 32,
    steps: int = 64,
    seed: int = 0,
    timeout: float = 300.0,
    report: str | PathLike[str] = "reports",
    known: str | PathLike[str] | None = None,
) -> "RunResult":
    """Run `lockstep check MODEL --engine ENGINE` and return its verdicts.

    engine: a value of the option `--engine`: a command, an address, dump:FOLDER or adapter:FILE.
    settings: exact, default, or None for the preset that fits the engine. timeout: seconds for one
    answer. known: a file of `check --write-known`.

    The result has `code` (0 conform, 1 divergence, 2 a defect of Lockstep, 3 incomplete),
    `verdicts` and `folder`, which holds report.jsonl and report.html.

    Raises BadInput if the model, the engine or an option cannot be used.
    """
    # late: a user's class imports this module too, and needs none of it
    from lockstep.harness.runs.check_model import check_model, plan_for_model

    plan = plan_for_model(
        Path(model),
        engine,
        settings=settings,
        suites=tuple(suites),
        oracle=oracle,
        n_tokens=tokens,
        n_steps=steps,
        seed=seed,
        time_limit=timeout,
    )
    return check_model(plan, Path(report), known=None if known is None else Path(known))
