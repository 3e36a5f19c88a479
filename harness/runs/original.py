"""`lockstep original`: compares a checkpoint and a GGUF file, and writes a report."""

import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lockstep.harness.known.originals import known_of_originals
from lockstep.harness.originals.compare import OriginalComparison, compare_original
from lockstep.harness.originals.findings import (
    DifferenceKind,
    NotCompared,
    OriginalDifference,
    OriginalPart,
    PartResult,
    QuantisationLoss,
    SkipReason,
)
from lockstep.harness.records import Verdict
from lockstep.harness.report.header import header, model_row
from lockstep.harness.report.jsonl import ReportWriter
from lockstep.harness.runs.original_run import RunOptions, compare_results
from lockstep.harness.runs.original_texts import compare_texts
from lockstep.harness.runs.run import run_folder

SUITE = "original"
# parts whose differences may follow from earlier ones
FOLLOWING = (OriginalPart.run, OriginalPart.embeddings)
WORDS = {
    DifferenceKind.holds: "holds {holds}",
    DifferenceKind.zeros: "holds zeros",
    DifferenceKind.order: "{permuted}",
    DifferenceKind.transposed: "is transposed",
    DifferenceKind.offset: "holds the original plus {added:g}, expected plus {expected_added:g}",
    DifferenceKind.ordinary: "names token {got}, which is no special token of the original",
    DifferenceKind.truncated: "is cut to its type, not rounded",
    DifferenceKind.narrowed: "was rounded to {by_way_of} on the way",
    DifferenceKind.shifted: "is shifted by {by} rows",
    DifferenceKind.halves: "has its two halves exchanged",
    DifferenceKind.scaled: "is about {factor:.3f} times the original",
    DifferenceKind.blocks: "has {blocks} blocks that differ from the usual quantiser's",
    DifferenceKind.computed: "is computed differently ({op}), by up to {error:.1e}, "
    "allowed {allowed:.1e}; one element",
    DifferenceKind.outputs: "differs by {worst_relative_to_largest_logit:.1e} of the largest, "
    "allowed {allowed_relative:.1e}",
    DifferenceKind.embedding: "differs by {error:.1e}, allowed {allowed:.1e}; no other prompt, "
    "length, pooling or normalisation explains it",
    DifferenceKind.prompt: "was embedded with a different prompt",
    DifferenceKind.truncation: "was cut at a different number of tokens",
    DifferenceKind.pooling: "was pooled differently",
}
NORMALISED = {
    True: "is normalised, but the checkpoint's pipeline does not normalise",
    False: "is not normalised, but the checkpoint's pipeline normalises",
}
PERMUTED = {  # keys: how often the rows of each head were reordered for rope
    0: "is not permuted for rope: its rows are in the checkpoint's order",
    1: "is permuted for rope with {heads} heads",
    2: "is permuted for rope twice, with {heads} heads",
}
REASONS = {
    SkipReason.no_row: "Lockstep has no rule for it",
    SkipReason.no_file: "the checkpoint lacks it",
    SkipReason.no_library: "the library that reads it is missing",
    SkipReason.no_meaning: "GGUF has no key for it",
    SkipReason.stored_type: "Lockstep does not read its type",
    SkipReason.no_environment: "to run the checkpoint too: lockstep engine add originals",
    SkipReason.quantised: "the file is quantised, so compare the run on an F32, F16 or BF16 file",
    SkipReason.no_answer: "no answer",
}


@dataclass(frozen=True, kw_only=True)
class OriginalRun:
    """The result of the command, and the folder of its report."""

    comparison: OriginalComparison
    folder: Path


def run_original(
    checkpoint: Path,
    model: Path,
    reports: Path,
    command: Sequence[str],
    progress: Callable[[str], None],
    options: RunOptions | None = None,
    embeddings: Path | None = None,
) -> OriginalRun:
    """Compare the files, and write a report into a new folder. `options` are the options of the
    runs. If it is None, only the files are compared. `embeddings` is a file with a user's
    embeddings to explain.

    Raises EngineError or OSError if a file cannot be read.
    """
    started = time.monotonic()
    found = compare_original(checkpoint, model, progress)
    # the architecture is known, and is the same in both
    if options is not None and len(found.parts) > 1:
        run = compare_results(checkpoint, model, options, progress)
        parts = [*found.parts, run]
        if embeddings is not None:
            parts.append(compare_texts(checkpoint, model, embeddings, options, progress))
        found = replace(found, parts=tuple(parts))
    folder = run_folder(reports, SUITE)
    row = model_row(model.name, model, "subject")
    writer = ReportWriter(folder, header(shlex.join(command), 0, [row], []))
    repro = shlex.join(["lockstep", "original", str(checkpoint), str(model)])
    for part in found.parts:
        for verdict in verdicts_of(part, model.name, repro):
            writer.verdict(verdict)
    writer.footer(found.exit_code, time.monotonic() - started)
    return OriginalRun(comparison=found, folder=folder)


def verdicts_of(part: PartResult, case: str, repro: str) -> list[Verdict]:
    """Return a verdict for each difference and for each place that was not compared."""
    same: dict[str, Any] = {"suite": SUITE, "case": case, "repro": repro}
    found = [
        Verdict(
            status="diverged",
            summary=describe_difference(each),
            detail=describe_place(each),
            key=f"{each.part}/{each.kind}",
            **same,
        )
        for each in part.differences
    ]
    for each in part.known:
        detail, key = asdict(each), f"{each.part}/{each.detail['known']}"
        text = describe_known(each)
        found.append(Verdict(status="excused", summary=text, detail=detail, key=key, **same))
    for skip in part.skipped:
        text, detail = f"{skip.place}: {describe_reason(skip)}", asdict(skip)
        if part.loss:
            text, detail = f"{text}; {describe_loss(part.loss)}", {**detail, **asdict(part.loss)}
        found.append(Verdict(status="not-compared", summary=text, detail=detail, **same))
    if not part.differences and part.compared:
        text = f"{part.part}: {part.compared} agree"
        found.append(Verdict(status="agreed", summary=text, detail={"part": part.part}, **same))
    return found


def describe_place(found: OriginalDifference) -> dict[str, Any]:
    """Return the facts of a difference under the names that reports use."""
    facts = {"part": found.part, "kind": found.kind, "where": found.place}
    return {**facts, "expected": found.expected, "actual": found.got, **found.detail}


def describe_part(part: PartResult, n_shown: int, *, follows: bool) -> Iterator[str]:
    """Yield the lines on a part for the terminal. `follows` is True if earlier parts differ."""
    n = len(part.differences)
    yield f"{part.part}: {part.compared} compared, {n + part.unlisted} differ"
    for each in part.differences[:n_shown]:
        yield f"  {describe_difference(each)}"
    if n > n_shown:
        yield f"  {n - n_shown} more are in the report"
    if part.unlisted:
        yield f"  {part.unlisted} more tokens differ in the same ways"
    if part.loss:
        what = "distance from the original" if follows else "loss by quantising"
        yield f"  {what}: {describe_loss(part.loss)}"
    if n and follows and part.part in FOLLOWING:
        yield "  these may follow from the differences above"
    yield from (f"  known: {text}" for text in describe_known_ones(part.known))
    yield from (f"  not compared: {text}" for text in describe_skips(part.skipped))


def conclude(found: OriginalComparison) -> str:
    """Return the last line of the output. It says that the files are the same, or names the first
    place that differs."""
    wrong = next((part for part in found.parts if part.differences), None)
    if wrong is None:
        incomplete = ", except for what was not compared" if found.exit_code else ""
        reasons = {skip.reason for part in found.parts for skip in part.skipped}
        within = ", within the precision of its types" if SkipReason.quantised in reasons else ""
        return f"the same: the file is the checkpoint{within}{incomplete}"
    text = f"DIFFERENT: first at {wrong.differences[0].place} ({wrong.part})"
    if wrong.part is OriginalPart.tensors and 2 * len(wrong.differences) > wrong.compared:
        text += "; most tensors differ: this may be another model"
    return text


def describe_difference(found: OriginalDifference) -> str:
    """Return a line on a difference for the terminal."""
    place, detail = found.place, found.detail
    if "what" in detail:
        place += f" ({detail['what']})"
    if found.kind is DifferenceKind.missing:
        more = "" if found.expected is None else f"; the original has {show(found.expected, 80)}"
        return f"{place} is missing{more}"
    if found.kind is DifferenceKind.unexpected:
        return f"{place} is not in the checkpoint"
    if found.kind is DifferenceKind.experts:
        return f"{place}: expert {detail['expert']} {describe_expert(detail)}"
    if found.kind is DifferenceKind.normalisation:
        return f"{place} {NORMALISED[found.got]}"
    words = WORDS.get(found.kind, "is wrong" if "rows" in detail else "differs")
    facts = {**detail, "permuted": describe_order(detail), "got": found.got}
    text = f"{place} {words.format(**facts)}"
    if "merge" in detail:
        text += "; {1} merges, expected {0}; the first at merge {2}".format(
            *detail["sizes"], detail["merge"]
        )
    if "of_elements" in detail:
        text += "; {elements} of {of_elements} elements, the first {element}".format(**detail)
    if "rows" in detail and "of_rows" in detail:
        text += f"; {detail['rows']} of {detail['of_rows']} rows, the first {detail['row']}"
    if found.expected == found.got or found.kind is DifferenceKind.ordinary:
        return text  # the first elements may be equal by chance
    return f"{text}: expected {show(found.expected)}, got {show(found.got)}"


def show(value: Any, longest: int = 60) -> str:
    return f"{value:.7g}" if isinstance(value, float) else f"{value!r:.{longest}}"


def describe_order(detail: Mapping[str, Any]) -> str:
    """Return words on the order of rows in the file, and in a right file."""
    if "turns" not in detail:
        return ""
    wanted = detail["expected_heads"]
    expected = f"expected {wanted} heads" if wanted else "expected the checkpoint's order"
    return f"{PERMUTED[detail['turns']].format(**detail)}; {expected}"


def describe_known(found: OriginalDifference) -> str:
    """Return a line on a known difference for the terminal: what differs, and why."""
    name = found.detail["known"]
    return f"{describe_difference(found)} (known: {name}: {known_sentence(name)})"


def describe_known_ones(known: Sequence[OriginalDifference]) -> list[str]:
    """Return a line for each known difference, with the places that it explains."""
    places: dict[str, list[str]] = {}
    for each in known:
        places.setdefault(each.detail["known"], []).append(each.place)
    return [
        f"{name} ({describe_places(found)}): {known_sentence(name)}"
        for name, found in places.items()
    ]


def describe_loss(loss: QuantisationLoss) -> str:
    """Return a line on the loss for the terminal."""
    return (
        f"{loss.positions} positions: KL divergence {loss.kl:.2e} ± {loss.kl_error:.1e} nats, "
        f"same likeliest token {loss.same_top:.1%} ± {loss.same_top_error:.1%}"
    )


def describe_places(places: Sequence[str]) -> str:
    more = f" and {len(places) - 3} more" if len(places) > 3 else ""
    return f"{', '.join(places[:3])}{more}"


def known_sentence(name: str) -> str:
    return next(each.sentence for each in known_of_originals() if each.id == name)


def describe_expert(detail: dict[str, Any]) -> str:
    if "holds_expert" in detail:
        return f"holds expert {detail['holds_expert']}"
    return "is transposed"


def describe_run(found: OriginalComparison) -> dict[str, Any]:
    """Return the result as plain values."""
    return {
        "architecture": found.architecture,
        "exit_code": found.exit_code,
        "parts": [
            {
                "part": part.part,
                "compared": part.compared,
                "differences": [asdict(each) for each in part.differences],
                "unlisted": part.unlisted,
                "known": [asdict(each) for each in part.known],
                "not_compared": [asdict(each) for each in part.skipped],
                "loss": asdict(part.loss) if part.loss else None,
            }
            for part in found.parts
        ],
    }


def describe_reason(skip: NotCompared) -> str:
    """Return the reason, with the engine's own message if there is one."""
    return f"{REASONS[skip.reason]}{f' ({skip.said})' if skip.said else ''}"


def describe_skips(skipped: Sequence[NotCompared]) -> list[str]:
    """Return a line for each reason."""
    by_reason: dict[str, list[str]] = {}
    for each in skipped:
        by_reason.setdefault(describe_reason(each), []).append(each.place)
    return [f"{describe_places(places)}: {reason}" for reason, places in by_reason.items()]
