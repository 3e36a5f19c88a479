"""`lockstep fuzz samplers`: chains of samplers on difficult logits."""

from typing import TYPE_CHECKING, Annotated

import typer

from lockstep.harness.cli.options import OracleOpt

if TYPE_CHECKING:
    from lockstep.harness.fuzzers.base import FuzzPlan


def fuzz_samplers(
    type_: Annotated[
        list[str] | None,
        typer.Option(
            "--type",
            help="Only chains with this sampler, by llama.h's name: top_k, top_p, min_p, typical, "
            "temp, penalties, dist and so on (repeatable).",
        ),
    ] = None,
    cases: Annotated[int, typer.Option(help="Chains with each sampler.", min=1)] = 1000,
    question: Annotated[
        list[str] | None,
        typer.Option(help="Ask only this question, given as JSON from a report (repeatable)."),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="The engine under test: a command that answers `sample` (see lockstep protocol "
            "--example sampler), or reference, llama.cpp, mutant:NAME, honest:NAME."
        ),
    ] = "reference",
    oracle: OracleOpt = "llama.cpp",
) -> "FuzzPlan":
    """Run chains of samplers on difficult logits, and compare every stage with its definition.

    Logits have ties, values that differ in the last bit, masks, zeros of both signs, huge numbers,
    or a single candidate. Chains have any order, and parameters at the ends of their ranges. For
    rows with NaN or infinity any answer is accepted. Each stage is judged on the engine's own
    candidates before it.

    Each fault is shrunk to fewer rows, stages, candidates and tokens, and to simpler numbers. Known
    mistakes of llama.cpp are named and excused. The oracle is compared with the same definitions.
    Exit code: 0 no fault, 1 a fault, 2 bad input, 3 the engine does not answer. Examples:

    \b
      lockstep fuzz samplers --engine ./my-engine
      lockstep fuzz samplers --type top_p --type min_p --cases 20000 --engine ./my-engine
      lockstep fuzz samplers --type top_p --engine mutant:top-p-drops-crossing
    """
    from lockstep.harness.fuzzers.base import FuzzPlan

    return FuzzPlan(
        targets=tuple(dict.fromkeys(type_ or ())),
        engine=engine,
        oracle=oracle,
        cases=cases,
        given=tuple(text.encode() for text in question or ()),
    )
