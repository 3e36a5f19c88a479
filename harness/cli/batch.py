"""`lockstep fuzz batch`: schedules of decode calls and cache operations."""

from typing import TYPE_CHECKING, Annotated

import typer

from lockstep.harness.cli.options import OracleOpt

if TYPE_CHECKING:
    from lockstep.harness.fuzzers.base import FuzzPlan


def fuzz_batch(
    type_: Annotated[
        list[str] | None,
        typer.Option(
            "--type",
            help="Only this kind of memory: attention, window, recurrent, hybrid, or yarn "
            "(attention with scaled keys). With llama.cpp@0.3.9 or older: attention, "
            "recurrent, pooled (repeatable).",
        ),
    ] = None,
    cases: Annotated[int, typer.Option(help="Schedules for each kind of memory.", min=1)] = 1000,
    schedule: Annotated[
        list[str] | None, typer.Option(help="Run only this schedule, given as JSON (repeatable).")
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="The engine under test: reference, llama.cpp, llama.cpp@VERSION. Programs cannot "
            "run schedules; `check` asks them for batches and sequences."
        ),
    ] = "reference",
    oracle: OracleOpt = "llama.cpp",
) -> "FuzzPlan":
    """Run schedules of decode calls and cache operations on two engines, twice on each engine.

    It compares return codes, positions, logits, and the cells that each ubatch uses. Then it
    compares each engine with itself. Tokens of other sequences must not change any bit of the
    logits. Another ubatch size must not change the logits by more than rounding does. Each
    difference is shrunk and reported once.

    With llama.cpp@0.3.8 or older, it compares only how llama_sbatch splits the batches (types
    attention, recurrent and pooled). Examples:

    \b
      lockstep fuzz batch
      lockstep fuzz batch --type window --cases 20000 --seed 7
      lockstep fuzz batch --oracle llama.cpp@0.3.8
    """
    from lockstep.harness.fuzzers.base import FuzzPlan
    from lockstep.harness.fuzzers.batch.fuzzer import kinds_for

    return FuzzPlan(
        targets=tuple(dict.fromkeys(type_ or kinds_for(oracle, engine))),
        engine=engine,
        oracle=oracle,
        cases=cases,
        given=tuple(text.encode() for text in schedule or ()),
    )
