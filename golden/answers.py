"""Judgement of answers to op vectors in files, for an engine without an adapter.

The folder has a file `NAME.safetensors` for each answered operation, named as in the vectors. The
file has a tensor `CASE/OUTPUT` for each output of each case, in the output's type and shape.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.engine.choices import choices
from lockstep.golden.load import load_vectors
from lockstep.golden.manifest import ManifestEntry, read_manifest
from lockstep.golden.ops.judge import judge
from lockstep.golden.store import (
    DEFAULT_ROOT,
    MAX_TENSORS,
    BrokenGolden,
    Tensors,
    parse_tensors,
    read,
)
from lockstep.golden.suites.base import Vectors, Verdicts
from lockstep.golden.suites.ops import sentence
from lockstep.harness.records import Verdict

SUFFIX = ".safetensors"
SHOWN = 4  # names in a sentence
# cases of verdicts that are not about an operation
NOT_ANSWERED, FOREIGN = "not-answered", "foreign"


def judge_answers(
    folder: Path,
    root: Path = DEFAULT_ROOT,
    progress: Callable[[str], None] = lambda _: None,
    *,
    only: Sequence[str] = (),
) -> Iterator[Verdict]:
    """Yield one verdict for each right operation, and one for each wrong output. only: names of
    operations such as "rope"; all if empty.

    Unanswered cases and unknown files, such as a file with a misspelt name, are listed as not
    compared. Raises BrokenGolden for vectors that are not intact.
    """
    entries = {entry.path: entry for entry in read_manifest(root)}
    known = {Path(e.path).stem: e for e in entries.values() if e.kind == "ops"}
    refuse_unknown(only, known)
    there, foreign = find_answers(folder, known)
    missing = []
    for op in only or sorted(known):
        if op not in there:
            missing.append(op)
            continue
        progress(op)
        vectors = load_vectors(root, known[op], entries)
        verdict = verdicts(op, folder)
        try:
            answers = parse_tensors(read(there[op], MAX_TENSORS), there[op].name)
        except BrokenGolden as error:
            yield verdict("not-compared", f"{op}: {error}", {"file": there[op].name})
            continue
        yield from of_operation(vectors, answers, verdict)
    if missing:
        text = f"no answers to {len(missing)} of {len(only or known)} operations: {some(missing)}"
        case = "asked-for" if only else NOT_ANSWERED
        yield verdicts(case, folder)("not-compared", text, {"missing": missing})
    if foreign:
        text = f"{len(foreign)} entries of the folder answer no operation: {some(foreign)}"
        yield verdicts(FOREIGN, folder)("not-compared", text, {"foreign": foreign})


def counted_verdicts(found: Sequence[Verdict]) -> list[Verdict]:
    """Return the verdicts that decide whether an engine conforms. The engine need not have every
    operation."""
    return [verdict for verdict in found if verdict.case not in (NOT_ANSWERED, FOREIGN)]


def find_answers(
    folder: Path, known: Mapping[str, ManifestEntry]
) -> tuple[dict[str, Path], list[str]]:
    """Return the files by operation, and the names of foreign files."""
    if not folder.is_dir():
        raise BrokenGolden(f"{folder} is not a folder")
    found, foreign = {}, []
    for path in sorted(folder.iterdir()):
        op = path.name.removesuffix(SUFFIX)
        if path.suffix == SUFFIX and op in known and path.is_file():
            found[op] = path
        else:
            foreign.append(path.name)
    return found, foreign


def refuse_unknown(names: Sequence[str], known: Mapping[str, ManifestEntry]) -> None:
    for name in names:
        if name not in known:
            raise BrokenGolden(f"no vectors of an operation {name!r} {choices(name, known)}")


def verdicts(op: str, folder: Path) -> Verdicts:
    words = ["lockstep", "golden", "ops", "--answers", str(folder)]
    words += ["--only", op] if op not in (NOT_ANSWERED, FOREIGN, "asked-for") else []
    return Verdicts(suite="golden-ops", case=op, repro=shlex.join(words))


def of_operation(vectors: Vectors, answers: Tensors, verdict: Verdicts) -> Iterator[Verdict]:
    rows, op = vectors.document["cases"], vectors.document["op"]
    names = {f"{row['id']}/{name}" for row in rows for name in row["outputs"]}
    strange = sorted(answers.keys() - names)
    if strange:
        text = f"{op}: no case has {some(strange)} (a name is like {min(names)!r})"
        yield verdict("not-compared", text, {"strange": strange})
    held, missing = [], []
    for row in rows:
        mine = outputs_of(row, answers)
        if mine.keys() == row["outputs"].keys():
            held += list(judge(row, vectors.tensors, mine))
        else:
            missing.append(row["id"])
    for one in held:
        if one.wrong is not None:
            detail = {"case": one.case, "output": one.output, "reason": one.reason}
            yield verdict("diverged", sentence(op, one), detail, key=f"value/{op}/{one.case}")
    if missing:
        text = f"{op}: no answers to {len(missing)} of {len(rows)} cases: {some(missing)}"
        yield verdict("not-compared", text, {"missing": missing})
    if held and all(one.wrong is None for one in held):
        share = max(one.share for one in held)
        text = f"{op}: {len(held)} outputs, worst error {share:.2f} of its limit"
        yield verdict("agreed", text, {"worst_share": share})


def outputs_of(row: Mapping[str, Any], answers: Tensors) -> Tensors:
    named = {name: f"{row['id']}/{name}" for name in row["outputs"]}
    return {name: answers[where] for name, where in named.items() if where in answers}


def some(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
