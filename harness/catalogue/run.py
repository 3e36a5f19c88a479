"""`lockstep selftest --catalogue` and `--honest`: tests of wrong and honest engines, with their
results."""

import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from lockstep.engine.choices import choices
from lockstep.engine.errors import Unsupported
from lockstep.engine.registry import import_members
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.catalogue.table import lines, not_found
from lockstep.harness.catalogue.trial import (
    Trial,
    Wrong,
    bench_for,
    trial_of,
    try_honest,
    try_wrong,
)
from lockstep.harness.catalogue.views import VIEWS, View
from lockstep.harness.honest.base import HonestEngine
from lockstep.harness.mutants.base import Mutant
from lockstep.harness.mutants.tokenizers import WRONG
from lockstep.harness.parallel.row_files import add_rows, read_rows
from lockstep.harness.parallel.works import Executor, as_done
from lockstep.harness.records import EXACT, PRESETS
from lockstep.harness.runs.output import Output

AT_ONCE = 16  # number of engines that share one model's oracle
# models for honest engines; designs of experts need models with experts
TEN = ("f32", "q8_0", "yarn", "bf16", "q4_0", "f16", "arch:qwen3", "arch:gemma3", "moe", "moe-q8_0")
WITH_EXPERTS = (
    *("moe", "moe-q8_0", "moe-f16", "moe-bf16", "moe-q4_0", "moe-q5_1"),
    *("arch:qwen3moe", "arch:deepseek2", "deepseek2-lite", "arch:gpt-oss"),
)


Family = TypeVar("Family", bound=Wrong | type[HonestEngine])
Key = TypeVar("Key")
Row = TypeVar("Row")
Place = tuple[str, str, str, int]  # engine, model, preset, seed


@dataclass(frozen=True, kw_only=True)
class CataloguePart:
    """Engines to test on one model, one after the other."""

    model: str
    engines: tuple[str, ...]
    preset: str = EXACT.name
    seed: int = 0


def wrong_engines() -> list[Wrong]:
    import_members("lockstep.harness.mutants")
    found = [c for c in Adapter.family.values() if issubclass(c, Mutant)]
    return [*sorted(found, key=lambda cls: (cls.group, cls.name)), *WRONG.values()]


def honest_engines() -> list[type[HonestEngine]]:
    import_members("lockstep.harness.honest")
    found = [c for c in Adapter.family.values() if issubclass(c, HonestEngine)]
    return sorted(found, key=lambda cls: cls.name)


def of_family(engines: Sequence[Family], only: str) -> list[Family]:
    """Return all wrong engines, or the engines of one group. Raises Unsupported for an unknown
    group, because a test of no engine is neither success nor failure."""
    found = [cls for cls in engines if only in ("", cls.group)]
    if not found:
        known = dict.fromkeys(cls.group for cls in engines)
        raise Unsupported(f"no family {only!r} of wrong engines {choices(only, known)}")
    return found


def parts_of(
    engines: Sequence[Wrong | type[HonestEngine]], at_once: int = AT_ONCE
) -> Iterator[CataloguePart]:
    ordered = sorted(engines, key=lambda cls: (cls.shows_on != "f32", cls.shows_on))
    for model, same in groupby(ordered, key=lambda cls: cls.shows_on):
        names = [cls.name for cls in same]
        for start in range(0, len(names), at_once):
            yield CataloguePart(model=model, engines=tuple(names[start : start + at_once]))


def try_part(part: CataloguePart, through: Sequence[View] = VIEWS) -> list[Trial]:
    """Test each engine of one part. `through` lists the views for wrong engines."""
    wrong_engines()
    honest_engines()
    with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
        bench = bench_for(part.model, Path(folder), PRESETS[part.preset], part.seed)
        try:
            found = []
            for name in part.engines:
                cls: Any = Adapter.member(name)
                if issubclass(cls, HonestEngine):
                    found.append(try_honest(bench, cls, part.model))
                else:
                    found.append(try_wrong(bench, cls, part.model, through))
            return found
        finally:
            bench.close()


def honest_parts(runs: int) -> Iterator[CataloguePart]:
    """Yield the parts of honest runs, each for one model, one preset and one seed of tokens. Each
    design gets at least `runs` runs."""
    engines = honest_engines()
    for seed in range(-(-runs // (len(TEN) * len(PRESETS)))):
        for model in dict.fromkeys((*TEN, *WITH_EXPERTS)):
            names = tuple(cls.name for cls in engines if model in models_of(cls))
            for preset in PRESETS:
                yield CataloguePart(model=model, engines=names, preset=preset, seed=seed)


def models_of(cls: type[HonestEngine]) -> tuple[str, ...]:
    return WITH_EXPERTS if cls.shows_on in WITH_EXPERTS else TEN


def run_catalogue(out: Output, *, only: str, file: Path | None, executor: Executor | None) -> int:
    """Run the catalogue. Return 0 if every wrong engine is caught when it shows its tensors, and no
    honest engine is accused; else 1."""
    chosen = of_family([*wrong_engines(), *honest_engines()], only)
    return run_parts(out, list(parts_of(chosen)), file, executor)


def run_honest(out: Output, runs: int, *, file: Path | None, executor: Executor | None) -> int:
    """Run the honest engines. Return 0 if none is accused."""
    return run_parts(out, list(honest_parts(runs)), file, executor)


def run_parts(
    out: Output, parts: Sequence[CataloguePart], file: Path | None, executor: Executor | None
) -> int:
    """Test the parts, print the results, and return the exit code. `file` is used as in
    `try_all`."""
    asked = {place for part in parts for place in places_of(part)}
    rest = partial(parts_left, parts)
    found = try_all(
        out, "catalogue", asked, place_of, rest, try_part, file, executor, row_of=trial_of
    )
    for line in (*lines(found), *not_found(found)):
        out.line(line)
    accused = any(seen.caught for t in found if t.honest for seen in t.views.values())
    missed = any(not t.views["tensors"].caught for t in found if not t.honest)
    return 1 if accused or missed or not found else 0


def places_of(part: CataloguePart) -> list[Place]:
    return [(name, part.model, part.preset, part.seed) for name in part.engines]


def place_of(trial: Trial) -> Place:
    return trial.engine, trial.model, trial.preset, trial.seed


def parts_left(parts: Sequence[CataloguePart], left: Collection[Place]) -> Iterator[CataloguePart]:
    for part in parts:
        if names := tuple(place[0] for place in places_of(part) if place in left):
            yield replace(part, engines=names)


# --- the one runner -----------------------------------------------------------------------------


def try_all(
    out: Output,
    name: str,
    wanted: Collection[Key],
    key: Callable[[Row], Key],
    parts_of: Callable[[Collection[Key]], Iterable[CataloguePart]],
    work: Callable[[CataloguePart], list[Row]],
    file: Path | None,
    executor: Executor | None,
    row_of: Callable[[dict[str, Any]], Row],
) -> list[Row]:
    """Return a row for each wanted trial, from the file or from a new run. The file has a line of
    JSON for each row, and trials in it are not repeated."""
    rows = [row for row in read_rows(file, row_of) if key(row) in wanted]
    done = set(map(key, rows))
    parts = list(parts_of([each for each in wanted if each not in done]))
    for number, some in enumerate(as_done(work, parts, executor), 1):
        out.progress(name, f"{number} of {len(parts)} parts")
        rows += some
        add_rows(file, some)
    return rows
