"""`lockstep selftest`: the harness proves that it can fail, and does not fail for nothing."""

import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lockstep.engine.registry import import_members
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.bisect.bisection import bisect
from lockstep.harness.check.check import Plan, open_plan, run_suites
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.mutants.base import Mutant
from lockstep.harness.parallel.works import Executor, as_done
from lockstep.harness.records import EXACT, StageText
from lockstep.harness.runs.output import Output
from lockstep.harness.runs.run import builtin_model
from lockstep.harness.selftest.clean_cases import clean_results
from lockstep.harness.selftest.tokens import in_words, try_wrong_tokenizer, wrong_tokenizers


@dataclass(frozen=True, kw_only=True)
class MutantResult:
    name: str
    mistake: str
    caught: bool  # check says divergence
    found: str  # where bisect saw it first
    expected: str
    confirmed: bool  # patching the culprits heals the run, where there is anything to heal

    @property
    def located(self) -> bool:
        return self.found == self.expected


def mutants() -> list[type[Mutant]]:
    import_members("lockstep.harness.mutants")
    found = [c for c in Adapter.family.values() if issubclass(c, Mutant) and c.first_of_all]
    return sorted(found, key=lambda c: c.name)


def place(layer: int | None, site: str) -> str:
    return site if layer is None else f"{site}-{layer}"


def try_mutant(cls: type[Mutant], folder: Path) -> MutantResult:
    """Check it on the model that shows it, then bisect."""
    model = builtin_model(cls.shows_on, folder)
    plan = Plan(
        case=f"builtin:{cls.shows_on}",
        model=model,
        subject_model=model,
        engine=cls.name,
        settings=EXACT,
        n_steps=8,
    )
    opened = open_plan(plan, lambda _: None)
    try:
        verdicts = list(run_suites(opened.context, ()))
        result = bisect(opened.context)
    finally:
        opened.close()
    first = result.first
    return MutantResult(
        name=cls.name,
        mistake=cls.mistake,
        caught=exit_code(verdicts) == 1,
        found=place(first.site.layer, first.site.name) if first else "nowhere",
        expected=place(cls.layer, cls.site),
        confirmed=result.patched is not None and result.patched.confirms is cls.moves_logits,
    )


# --- the command --------------------------------------------------------------------------------


def run_selftest(
    out: Output,
    *,
    list_only: bool,
    clean: int,
    seed: int,
    file: Path | None,
    executor: Executor | None = None,
) -> int:
    """0: all caught and located, no false alarm; 1 otherwise. file: of clean cases, those run."""
    if list_only:
        for cls in mutants():
            out.line(f"{cls.name:<34} {cls.mistake}")
        for wrong in wrong_tokenizers():
            out.line(f"{wrong.name:<34} {wrong.mistake}")
        return 0
    results = mutant_results(out, executor)
    for r in results:
        words = (
            "caught" if r.caught else "MISSED",
            f"at {r.found}" if r.located else f"at {r.found}, EXPECTED {r.expected}",
            "confirmed" if r.confirmed else "NOT CONFIRMED",
        )
        out.line(f"{r.name:<34} {', '.join(words)}")
    n = len(results)
    caught, located = sum(r.caught for r in results), sum(r.located for r in results)
    confirmed = sum(r.confirmed for r in results)
    out.line(f"caught {caught} of {n}, located {located}, confirmed by patching {confirmed}")
    tokens_well = tokenizers_are_caught(out, executor)
    alarms = 0
    if clean:
        cases = clean_results(range(seed, seed + clean), executor, file)
        for number, tried in enumerate(cases, 1):
            out.progress("selftest", f"clean case {number} of {clean}")
            alarms += tried.alarm
            for text in tried.wrong:
                out.line(f"{tried.case}: {text}")
        out.line(f"false alarms: {alarms} in {clean} clean cases from seed {seed}")
    return 0 if caught == located == confirmed == n and tokens_well and not alarms else 1


def mutant_results(out: Output, executor: Executor | None) -> list[MutantResult]:
    """In the order of the mutants."""
    with tempfile.TemporaryDirectory(prefix="lockstep-") as name:
        folder, of_all = Path(name), mutants()
        models = [builtin_model(cls.shows_on, folder) for cls in of_all]  # once, by one process

        def here(cls: type[Mutant]) -> MutantResult:
            out.progress("selftest", StageText.of_suite(cls.name))
            return try_mutant(cls, folder)

        work = here if executor is None else partial(try_mutant, folder=folder)
        results = []
        for result in as_done(work, of_all, executor, models):
            out.progress("selftest", f"{result.name} is done")
            results.append(result)
    return sorted(results, key=lambda result: result.name)


def tokenizers_are_caught(out: Output, executor: Executor | None) -> bool:
    """Whether all wrong tokenizers are, with a small text each; they compute like the reference."""
    results = []
    for result in as_done(try_wrong_tokenizer, wrong_tokenizers(), executor):
        out.progress("selftest", f"fuzz tokens {result.name}")
        results.append(result)
    places = [wrong.name for wrong in wrong_tokenizers()]
    results.sort(key=lambda result: places.index(result.name))
    for result in results:
        out.line(f"{result.name:<34} {in_words(result)}")
    n = len(results)
    caught, small = sum(r.caught for r in results), sum(r.located for r in results)
    out.line(f"wrong tokenizers: caught {caught} of {n}, made small {small}")
    return caught == small == n
