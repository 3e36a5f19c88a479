"""llama.cpp's graph of a model, and the findings on an engine's tensors of this graph."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.engine.batch import Batch
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.ops.build import Build
from lockstep.harness.check.check import lanes_of
from lockstep.harness.context.runner import Runner
from lockstep.harness.graph.aliases import places_by_site, rename_wires
from lockstep.harness.graph.program import Place, Program
from lockstep.harness.graph.record import record
from lockstep.harness.graph.segments import SegmentJudge
from lockstep.harness.graph.wiring import wires_of
from lockstep.harness.judging.findings import Values
from lockstep.harness.judging.judge import SiteFinding
from lockstep.harness.records import Answered, Request, Settings


@dataclass(frozen=True, eq=False)
class Recorded:
    path: Path
    settings: Settings
    batches: tuple[Batch, ...]
    program: Program
    build: Build

    @classmethod
    def of(cls, path: Path, settings: Settings, batches: tuple[Batch, ...]) -> "Recorded":
        with Runner().open("llama.cpp", path, settings) as session:
            info = session.ask("describe")
            assert isinstance(info, Answered)
            program = record(session, batches)
            assert isinstance(program, Program)
        build = Build(
            lanes=lanes_of(info.value.build),
            n_threads=settings.n_threads,
            generic=info.value.generic,
        )
        return cls(path, settings, batches, program, build)

    def shown_by(self, make: Any, replace: Values | None = None) -> Values:
        """Return every tensor of an engine's own run, or of a run with replaced values."""
        engine = make(self.path, self.settings)
        request = Request(batches=self.batches, capture=True, replace=replace or {})
        values: Values = engine.evaluate(request).trace.values()
        engine.close()
        return values

    def findings(self, shown: Values, given: Values | None = None) -> list[SiteFinding]:
        """Return the findings on the shown values. given: replacement values at some sites."""
        wires = wires_of(self.program)
        places = places_by_site(self.program, wires)

        def placed(values: Values) -> Mapping[Place, Any]:
            return {places[site]: v for site, v in values.items() if site in places}

        with GgufFile.open(self.path) as file:
            judge = SegmentJudge(
                program=self.program,
                wires=rename_wires(wires, places),
                file=file,
                build=self.build,
                shown=placed(shown),
                given=placed(given or {}),
            )
            found = list(judge.findings())
        assert found
        return found

    def accused(self, make: Any, only: tuple[str, ...] = ()) -> list[SiteFinding]:
        """Return the findings of a mismatch in an engine's own run. only: names of the sites to
        judge."""
        values = self.shown_by(make)
        chosen = {s: v for s, v in values.items() if not only or s.name in only}
        return [found for found in self.findings(chosen) if found.mismatch is not None]
