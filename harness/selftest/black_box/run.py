"""`lockstep selftest --black-box`: tests engines that show only logits. The harness must name the
layer and the part."""

import random
import tempfile
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from lockstep.engine.choices import choices
from lockstep.engine.errors import Unsupported
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.catalogue.models import model_for
from lockstep.harness.catalogue.run import CataloguePart, try_all, wrong_engines
from lockstep.harness.mutants.base import Mutant
from lockstep.harness.parallel.row_files import make_row
from lockstep.harness.parallel.works import Executor
from lockstep.harness.real_models.fetch import model_file
from lockstep.harness.runs.output import Output
from lockstep.harness.selftest.black_box.one_layer import PREFIX, SCALED, faults_of
from lockstep.harness.selftest.black_box.rates import is_kept, lines
from lockstep.harness.selftest.black_box.trials import BlackBoxRow, tries

AT_ONCE = 48  # number of engines that run on one model together and share its slices
Pair = tuple[str, str]  # model, engine
# OWN: the model on which most mistakes show; OTHERS: further models for these mistakes
OWN = "f32"
OTHERS = ("arch:qwen3", "arch:gemma3", "arch:gpt2")
IN_ONE_LAYER = (
    *("five-layers", "five-layers-q4_1", "qwen2-deeper", "qwen3-deeper", "gpt2-deeper"),
    "arch:gemma3",
)
# models without logits, or with layers that cannot be sliced
WITHOUT_LOGITS = ("arch:bert", "bert", "t5")
REAL = "smollm2"
MATRICES = ("q.weight", "k.weight", "v.weight", "up.weight", "gate.weight", "down.weight")
NOT_OF_LOGITS = ("sampling", "races")


def run_black_box(
    out: Output,
    *,
    only: str,
    sample: int | None,
    seed: int,
    file: Path | None,
    executor: Executor | None,
) -> int:
    """Run the self-test of bisections by logits. Return 0 if the black box names the promised
    shares of layers and parts, for engines whose logits change.

    `only` is a family of mistakes, or a model. The real model, on which each engine takes half a
    minute, is tested only if it is named. `file` is used as in `try_all`.
    """
    chosen = chosen_of(every_pair(seed, only), only)
    if sample is not None and sample < len(chosen):
        chosen = random.Random(seed).sample(chosen, sample)
    key, row_of = attrgetter("model", "engine"), make_row(BlackBoxRow)
    rows = try_all(out, "black box", chosen, key, parts_of, tries, file, executor, row_of)
    for line in lines(rows):
        out.line(line)
    return 0 if is_kept(rows) else 1


# --- choice of trials -----------------------------------------------------------------------------


def every_pair(seed: int, only: str) -> list[Pair]:
    """Return all pairs of a model and an engine. Faults in single layers are omitted if `only`
    names another family, because their models must be written first. Pairs of the real model are
    included only if `only` names them."""
    mistakes = [cls for cls in wrong_engines() if issubclass(cls, Mutant)]
    mistakes = [cls for cls in mistakes if cls.group not in NOT_OF_LOGITS]
    found = [(cls.shows_on, cls.name) for cls in mistakes if cls.shows_on not in WITHOUT_LOGITS]
    of_llama = [cls.name for cls in mistakes if cls.shows_on == OWN]
    found += [(model, name) for model in OTHERS for name in of_llama]
    if only in ("", PREFIX, *IN_ONE_LAYER):
        found += in_one_layer(seed)
    return [*found, *(of_real_model(of_llama, seed) if only == REAL else ())]


def in_one_layer(seed: int) -> Iterator[Pair]:
    with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
        for model in IN_ONE_LAYER:
            for fault in faults_of(model_for(model, Path(folder)), seed):
                yield model, fault.engine


def of_real_model(of_llama: Sequence[str], seed: int) -> Iterator[Pair]:
    """Yield thirty engines for the real model, because each takes half a minute: ops, tensors of
    one layer, and scales off by a thousandth. Yield none if the model was not fetched."""
    path = model_file(REAL)
    if path is None:
        return
    draw = random.Random(seed)
    faults = list(faults_of(path, seed))
    scaled = [f for f in faults if f.change == SCALED and f.where.endswith(MATRICES)]
    others = [fault for fault in faults if fault.change != SCALED]
    chosen = [*draw.sample(scaled, 4), *draw.sample(others, 14)]
    for name in [*draw.sample(of_llama, 12), *(fault.engine for fault in chosen)]:
        yield REAL, name


def chosen_of(pairs: Sequence[Pair], only: str) -> list[Pair]:
    """Return the pairs that `only` selects. Raises Unsupported if there are none, because a run
    without trials is not a success."""
    found = [pair for pair in pairs if only in ("", pair[0], family_of(pair[1]))]
    if not found:
        known = dict.fromkeys(n for model, name in pairs for n in (family_of(name), model))
        known |= dict.fromkeys((PREFIX, REAL))
        raise Unsupported(f"no family or model {only!r} of wrong engines {choices(only, known)}")
    return found


def family_of(engine: str) -> str:
    cls: Any = Reference if engine.startswith(PREFIX) else Adapter.member(engine)
    return PREFIX if cls is Reference else str(cls.group)


def parts_of(pairs: Collection[Pair]) -> Iterator[CataloguePart]:
    for model, same in groupby(sorted(pairs), key=lambda pair: pair[0]):
        names, n = [engine for _, engine in same], 1 if model == REAL else AT_ONCE
        for start in range(0, len(names), n):
            yield CataloguePart(model=model, engines=tuple(names[start : start + n]))
