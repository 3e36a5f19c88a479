"""The result of a run over one or more models."""

from dataclasses import dataclass
from pathlib import Path

from lockstep.harness.records import EngineInfo, Verdict


@dataclass(kw_only=True)
class RunResult:
    """The exit code of a run, its verdicts, and the folder of its report."""

    code: int
    folder: Path
    verdicts: list[Verdict]
    engines: tuple[EngineInfo, ...] = ()
    seconds: float = 0.0
    next_step: str = ""  # lines with commands that find the place, or that compare more closely
