"""`lockstep selftest --arch`: damaged models of many architectures, with a report and counts."""

import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from lockstep.harness.damage.trials import SUITE, DamagePlan, TriedChange, model_path, trials
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.parallel.works import Executor, as_done
from lockstep.harness.records import StageText, Verdict
from lockstep.harness.report.header import header
from lockstep.harness.report.jsonl import ReportWriter
from lockstep.harness.runs.output import Output
from lockstep.harness.runs.run import run_folder
from lockstep.harness.shadow.models import make_variant, open_for_variants
from lockstep.harness.synth.any_arch import variant_named

Progress = Callable[[str], None]


class VerdictOutput(Output, Protocol):
    def verdict(self, verdict: Verdict) -> None: ...


def run_damage(
    plans: Sequence[DamagePlan],
    reports: Path,
    command: Sequence[str],
    executor: Executor | None,
    out: VerdictOutput,
) -> int:
    """Run the damaged models, and return 1 if `bisect` misses a change. Each verdict is written to
    disk before the next model runs."""
    started = time.perf_counter()
    verdicts: list[Verdict] = []
    writer: ReportWriter | None = None
    for tried in results(plans, executor, lambda text: out.progress("selftest", text)):
        if writer is None:
            head = header(shlex.join(command), plans[0].seed, [], tried.engines)
            writer = ReportWriter(run_folder(reports, SUITE), head)
        for verdict in tried.verdicts:
            verdicts.append(verdict)
            writer.verdict(verdict)
            out.verdict(verdict)
    assert writer is not None
    code = exit_code(verdicts)
    writer.footer(code, time.perf_counter() - started)
    for line in table(verdicts):
        out.line(line)
    out.line(f"report: {writer.path}")
    return code


def results(
    plans: Sequence[DamagePlan], executor: Executor | None, progress: Progress
) -> Iterator[TriedChange]:
    with TemporaryDirectory(prefix="lockstep-") as name:
        folder = Path(name)
        make_models(plans, folder)

        def here(plan: DamagePlan) -> TriedChange:
            progress(StageText.of_suite(plan.variant))
            return trials(plan, folder)

        work = here if executor is None else partial(trials, folder=folder)
        for tried in as_done(work, plans, executor, [model_path(p, folder) for p in plans]):
            progress(f"{tried.variant} is done")
            yield tried


def make_models(plans: Sequence[DamagePlan], folder: Path) -> None:
    """Write all models. The same engine process names the tensors of all models, because starting
    an engine takes long."""
    with open_for_variants() as session:
        for plan in plans:
            variant, path = variant_named(plan.variant), model_path(plan, folder)
            make_variant(variant, path, seed=plan.seed, quant=plan.quant, session=session)


COLUMNS = ("changes", "move an output", "named", "beyond a bound", "alone", "confirmed")


def table(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield a line for each kind of change, then the missed and the untried changes, then the
    total."""
    tried = [v for v in verdicts if "damage" in v.detail]
    yield f"{'':<8}" + "".join(f"{name:>16}" for name in COLUMNS)
    kinds = Counter(v.detail["kind"] for v in tried)
    for kind in (*sorted(kinds), "all"):
        same = [v for v in tried if kind in (v.detail["kind"], "all")]
        yield f"{kind:<8}" + "".join(f"{n:>16}" for n in counts(same))
    for verdict in verdicts:
        if verdict.status not in ("agreed", "excused"):
            yield f"{verdict.status}: {verdict.case}: {verdict.summary}"
    models = len({v.case for v in verdicts})
    moved = [v for v in tried if v.detail["changed"]]
    named = sum(v.detail["named"] for v in moved)
    share = f" ({named / len(moved):.1%})" if moved else ""
    yield f"{models} models: {named} of {len(moved)} changes that move an output are named{share}"


def counts(tried: Sequence[Verdict]) -> list[int]:
    """Return the numbers for COLUMNS. All numbers after the second count only changes that alter an
    output."""
    moved = [v for v in tried if v.detail["changed"]]
    names = ("named", "beyond_bound", "alone", "confirmed")
    return [len(tried), len(moved), *(sum(v.detail[name] for v in moved) for name in names)]
