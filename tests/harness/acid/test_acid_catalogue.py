"""Reports that the catalogue's wrong engines write when they run an acid model.

LOCKSTEP_ACID_ALL=1 with `pytest -s` tries every engine that a test covers. Without this variable,
the tests try only some engines.
"""

import os
import sys
from itertools import combinations_with_replacement
from pathlib import Path

import pytest

from lockstep.harness.acid.architectures import ARCHITECTURES
from lockstep.harness.acid.coded import FORMATS
from lockstep.harness.acid.explain import causes
from lockstep.harness.acid.report import report_for
from lockstep.harness.acid.write import write_acid
from lockstep.harness.catalogue.acid import SeenReport, covered_by, table, try_engine

SOME = slice(None, None, 1 if os.environ.get("LOCKSTEP_ACID_ALL") else 9)


# engines whose mistake has no place in the graph of an architecture
WITHOUT = {
    # these find the last norm by counting two norms in each layer, as in llama
    "qwen3": ("last-norm-missing", "last-norm-of-prompts-only"),
    # gemma3 has more norms too; its scale is part of the queries; its windows have no cache for the
    # engine that keeps the last key
    "gemma3": (
        "last-norm-missing",
        "last-norm-of-prompts-only",
        "attention-scale-squared",
        "missing-scale",
        "cache-keeps-last",
    ),
    # there is one ffn_gate for each expert, under another name
    "llama-moe": ("gate-and-up-by-order",),
    # these are mistakes of RMS norms
    "gpt2": (
        "norm-without-weight",
        "weight-before-norm",
        "last-norm-missing",
        "last-norm-of-prompts-only",
    ),
}


# mistakes that leave no report, because gemma3 reads every answer through norms and layers
NO_REPORT = {
    "gemma3": ("norm-without-weight", "last-norm-of-a-layer", "cache-keys-for-values"),
}


def tried(kind: str, folder: Path, prefix: str = "", arch: str = "llama") -> list[SeenReport]:
    path, report = folder / "acid.gguf", report_for(arch, kind)
    write_acid(path, arch, kind)
    engines = covered_by([test for test in report.tests if test.name.startswith(prefix)])
    engines = [
        name for name in engines if name.removeprefix("mutant:") not in WITHOUT.get(arch, ())
    ]
    return [try_engine(name, path, report) for name in engines[SOME]]


def check_first_names(wrote: list[SeenReport], arch: str, kind: str) -> None:
    """Assert that the first named cause is true for each engine, and for the combined NOs of any
    two engines."""
    tests = {test.name: test for test in report_for(arch, kind).tests}
    for pair in combinations_with_replacement(wrote, 2):
        for readings in zip(*(each.readings for each in pair), strict=True):
            every = {a.test: a for reading in readings for a in reading.answers if not a.ok}
            noes = [every[name] for name in tests if name in every]
            true = {name for each in pair for name in each.covering} & {*every}
            if true:
                first = {answer.test for answer in causes(tests, noes)[0]}
                assert first & true, [each.engine for each in pair]


def check(seen: list[SeenReport], arch: str = "llama", kind: str = "F32") -> None:
    sys.stdout.write("\n".join(("", *table(seen), "")))
    missed = [each for each in seen if not each.names_cause]
    wrote = [each for each in seen if each.names_cause]  # the other engines lose everything anyway
    kept, lost = (sum(len(getattr(each, what)) for each in wrote) for what in ("kept", "lost"))
    assert not any(each.complete for each in missed)
    assert {each.engine.removeprefix("mutant:") for each in missed} <= {*NO_REPORT.get(arch, ())}
    check_first_names(wrote, arch, kind)
    # with every ninth engine, an engine that changes all rows is a twelfth of the total
    if SOME.step == 1 or arch != "gemma3":
        assert kept >= 0.95 * (kept + lost)


def test_covered_mistakes_are_named_and_other_tests_stay_ok(tmp_path: Path) -> None:
    check(tried("F32", tmp_path))


@pytest.mark.parametrize("arch", [arch for arch in ARCHITECTURES if arch != "llama"])
def test_mistakes_of_other_architectures_are_named(arch: str, tmp_path: Path) -> None:
    check(tried("F32", tmp_path, arch=arch), arch)


@pytest.mark.parametrize("kind", FORMATS)
def test_misread_format_is_named_by_the_wrong_part_of_its_blocks(kind: str, tmp_path: Path) -> None:
    check(tried(kind, tmp_path, prefix=f"{kind}-"), kind=kind)
