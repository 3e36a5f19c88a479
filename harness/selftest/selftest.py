"""`lockstep selftest`: tests that the harness finds mistakes and raises no false alarms."""

from functools import partial
from pathlib import Path
from typing import Any

from lockstep.harness.adapters.base import Adapter
from lockstep.harness.catalogue.run import parts_of, try_part, wrong_engines
from lockstep.harness.catalogue.trial import Trial
from lockstep.harness.catalogue.views import ALL
from lockstep.harness.mutants.base import Mutant
from lockstep.harness.parallel.works import Executor, as_done
from lockstep.harness.runs.output import Output
from lockstep.harness.selftest.clean_cases import clean_results
from lockstep.harness.selftest.tokens import in_words, try_wrong_tokenizer, wrong_tokenizers

AT_ONCE = 3  # number of wrong engines that share one model's oracle
UNTOLD = (
    # at most one in so many random models may show too little; 11 of 500 did, and a blind suite
    # would fail on all
    20
)


def mutants() -> list[type[Mutant]]:
    first = [c for c in wrong_engines() if issubclass(c, Mutant) and c.first_of_all]
    return sorted(first, key=lambda cls: cls.name)


def is_confirmed(trial: Trial) -> bool:
    """Return True if patching the wrong ops heals the run. This is for an engine whose mistake
    changes logits. For any other engine, return True if patching confirms nothing."""
    cls: Any = Adapter.member(trial.engine)
    return trial.confirmed is bool(cls.moves_logits)


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
    """Run the self-test. Return 0 if all wrong engines are caught and located without a false
    alarm, else 1. `file` stores the results of clean cases."""
    if list_only:
        for cls in mutants():
            out.line(f"{cls.name:<34} {cls.mistake}")
        for wrong in wrong_tokenizers():
            out.line(f"{wrong.name:<34} {wrong.mistake}")
        return 0
    trials = mutant_trials(out, executor)
    for t in trials:
        words = (
            "caught" if t.views[ALL.name].caught else "MISSED",
            f"at {t.found}" if t.op_right else f"at {t.found}, EXPECTED {t.expected}",
            "confirmed" if is_confirmed(t) else "NOT CONFIRMED",
        )
        out.line(f"{t.engine:<34} {', '.join(words)}")
    n = len(trials)
    caught, located = sum(t.views[ALL.name].caught for t in trials), sum(t.op_right for t in trials)
    confirmed = sum(map(is_confirmed, trials))
    out.line(f"caught {caught} of {n}, located {located}, confirmed by patching {confirmed}")
    tokens_well = tokenizers_are_caught(out, executor)
    alarms = untold = 0
    if clean:
        cases = clean_results(range(seed, seed + clean), executor, file)
        for number, tried in enumerate(cases, 1):
            out.progress("selftest", f"clean case {number} of {clean}")
            alarms += tried.alarm
            untold += bool(tried.untold)
            for text in (*tried.wrong, *tried.untold):
                out.line(f"{tried.case}: {text}")
        out.line(f"false alarms: {alarms} in {clean} clean cases from seed {seed}")
        out.line(f"{untold} of them contain comparisons that any answer would pass")
    told = untold * UNTOLD <= clean
    return 0 if caught == located == confirmed == n and tokens_well and told and not alarms else 1


def mutant_trials(out: Output, executor: Executor | None) -> list[Trial]:
    """Return a trial for each wrong engine, sorted by name. Each engine runs on the model that
    shows its mistake."""
    trials: list[Trial] = []
    for some in as_done(
        partial(try_part, through=(ALL,)), list(parts_of(mutants(), AT_ONCE)), executor
    ):
        out.progress("selftest", f"{', '.join(trial.engine for trial in some)} are done")
        trials += some
    return sorted(trials, key=lambda trial: trial.engine)


def tokenizers_are_caught(out: Output, executor: Executor | None) -> bool:
    """Return True if `fuzz tokens` catches every wrong tokenizer with a small text. Apart from the
    tokenizer, these engines compute like the reference."""
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
