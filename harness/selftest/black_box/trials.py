"""The trial of a wrong engine that shows only logits: the black box's answer, compared with the
true places."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

from lockstep.engine.errors import EngineError
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.asking.session import LocalSession
from lockstep.harness.blackbox.asking import NotSteady, SliceAsker
from lockstep.harness.blackbox.bisection import BlackBoxBisection, bisect_black_box
from lockstep.harness.blackbox.places import SeenInPlace, put_together
from lockstep.harness.catalogue.models import model_for
from lockstep.harness.catalogue.opening import KnownModels
from lockstep.harness.catalogue.run import CataloguePart, wrong_engines
from lockstep.harness.check.check import Plan
from lockstep.harness.context.suite import NoAnswer
from lockstep.harness.mutants.base import Mutant
from lockstep.harness.real_models.fetch import model_file
from lockstep.harness.real_models.table import MODELS
from lockstep.harness.records import EXACT
from lockstep.harness.selftest.black_box.named_parts import is_right
from lockstep.harness.selftest.black_box.one_layer import (
    IN_THE_FILE,
    PREFIX,
    damaged_file,
    engine_with,
    fault_named,
)
from lockstep.harness.selftest.black_box.truth import WrongPlace, nodes_of, wrong_places

NODE_OF = {"logits": "result_output"}  # node for suites that the catalogue names as a site
ANOTHER = "another mistake on this model"
N_TOKENS = 32  # the default of bisect


@dataclass(frozen=True, kw_only=True)
class BlackBoxRow:
    """A row of the table of trials.

    wrong: the wrong places, as node-layer. said: the layer and the name of each named part, in
    order. layer: True if the first named layer is the first wrong layer. layers: True if the answer
    is also right on all other tested layers. part: True if every part that is named in this layer
    is wrong.
    """

    engine: str
    family: str
    model: str
    status: str  # agreed: logits do not differ; otherwise diverged, or another outcome
    wrong: tuple[str, ...] = ()
    said: tuple[tuple[str, str], ...] = ()
    layer: bool = False
    layers: bool = False
    part: bool = False
    unasked: int = 0  # number of layers without a slice
    seen: bool = False  # True: a slice, a lens or a place shows the mistake
    models: int = 0  # number of made models that were run
    seconds: float = 0.0  # processor time of this process


@dataclass(frozen=True, kw_only=True)
class Claim:
    layer: int | None
    part: str


@dataclass(kw_only=True)
class BlackBoxBench:
    """A model that is used for trials of several engines."""

    model: Path
    name: str
    folder: Path
    models: KnownModels
    roles: dict[Any, Any] = field(default_factory=dict)

    def plan(self, subject_model: Path) -> Plan:
        return Plan(
            case=self.name,
            model=self.model,
            subject_model=subject_model,
            settings=EXACT,
            suites=("trace",),
            n_tokens=N_TOKENS,
        )


def tries(part: CataloguePart) -> list[BlackBoxRow]:
    """Try the wrong engines of one model, and return a row for each."""
    wrong_engines()
    with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
        kept, made = Path(folder, "kept"), Path(folder, "made")
        kept.mkdir()
        made.mkdir()
        path = real_path(part.model) or model_for(part.model, Path(folder))
        models = KnownModels(folder=kept)
        bench = BlackBoxBench(model=path, name=part.model, folder=made, models=models)
        try:
            return [one(bench, name) for name in part.engines]
        finally:
            models.close()


def real_path(name: str) -> Path | None:
    return model_file(name) if name in MODELS else None


def one(bench: BlackBoxBench, name: str) -> BlackBoxRow:
    started = process_time()
    cls, family, subject_model = engine_of(bench, name)
    asked = bench.models.asked
    asker = SliceAsker(
        plan=bench.plan(subject_model),
        folder=bench.folder,
        progress=lambda _: None,
        opening=bench.models.opening(partial(LocalSession, cls)),
        roles=bench.roles,
    )
    ending: dict[str, Any] = {"engine": name, "family": family, "model": bench.name}
    try:
        status, found = said_of(asker, always=family == PREFIX)
    except (NoAnswer, NotSteady, EngineError) as error:
        return BlackBoxRow(**ending, status=f"not bisected: {error}"[:200])
    finally:
        asker.close()
    ending["status"] = status
    if found is not None:
        unasked = {r.layer for r in found.rows if not (r.answer.agrees or r.answer.differs)}
        every = truth_of(bench, cls, subject_model)
        if is_another(bench, cls, every):
            ending["status"] = ANOTHER
        truth = [p for p in every or declared_places(cls) if p.layer not in unasked]
        ending["unasked"] = len(unasked)
        ending |= score_claims(claims_of(found), truth, name, family)
    return BlackBoxRow(
        **ending,
        models=bench.models.asked - asked,
        seconds=round(process_time() - started, 2),
    )


def engine_of(bench: BlackBoxBench, name: str) -> tuple[type[Reference], str, Path]:
    """Return the engine's class, its family, and the model file that it runs."""
    if not name.startswith(PREFIX):
        cls: Any = Adapter.member(name)
        return cls, cls.group, bench.model
    fault = fault_named(name)
    if fault.way == IN_THE_FILE:
        return Reference, PREFIX, damaged_file(fault, bench.model, bench.folder)
    return engine_with(fault), PREFIX, bench.model


def said_of(asker: SliceAsker, *, always: bool) -> tuple[str, BlackBoxBisection | None]:
    """Return the status and the bisection of the black box. If `always` is True, bisect even if the
    whole model's logits do not differ."""
    if not always:
        whole = asker.answer_to(asker.plan)
        if not whole.differs:
            return whole.status, None
    found = bisect_black_box(asker)
    return found.whole.status, found


def truth_of(
    bench: BlackBoxBench, cls: type[Reference], subject_model: Path
) -> tuple[WrongPlace, ...]:
    context = bench.models.whole(bench.plan(bench.model))
    with (
        LocalSession(Reference, bench.model, context.settings) as honest,
        LocalSession(cls, subject_model, context.settings) as engine,
    ):
        return wrong_places(honest, engine, context.batches)


def is_another(bench: BlackBoxBench, cls: Any, wrong: Sequence[WrongPlace]) -> bool:
    """Return True if the mistake has another effect on this architecture. For example, in llama's
    graph every fifth norm is the last norm, but not in other graphs."""
    if not issubclass(cls, Mutant) or cls.shows_on == bench.name or not wrong:
        return False
    context = bench.models.whole(bench.plan(bench.model))
    with LocalSession(Reference, bench.model, context.settings) as honest:
        there = nodes_of(honest, context.batches)
    return cls.site in there and cls.site not in {place.node for place in wrong}


def declared_places(cls: Any) -> list[WrongPlace]:
    """Return the place that an engine declares, for an engine whose single ops are right."""
    if not issubclass(cls, Mutant):
        return []
    return [WrongPlace(layer=cls.layer, node=NODE_OF.get(cls.site, cls.site))]


def claims_of(found: BlackBoxBisection) -> list[Claim]:
    """Return the claims of a bisection: first parts of layers, in order, then tensors."""
    rows = [Claim(layer=row.layer, part=part.name) for row in found.guilty for part in row.parts]
    looked = [name for each in found.lenses for name in each.tensors]
    if not rows:  # the test at a place shows more
        looked += of_places(found.places)
    return rows + [Claim(layer=layer_of(name), part=short(name)) for name in dict.fromkeys(looked)]


def of_places(places: Sequence[SeenInPlace]) -> list[str]:
    """Return the places, with pairs in the same probe model merged."""
    pairs = list(put_together(places))
    of_pairs = {name for pair in pairs for name in names_in(pair)}
    single = [name for each in places for name in each.tensors]
    return [*pairs, *(name for name in single if name not in of_pairs)]


def names_in(pair: str) -> list[str]:
    first, second = pair.partition(",")[0].split(" and ")
    return [first, ".".join([*first.split(".")[:2], second])]


def layer_of(tensor: str) -> int | None:
    return int(tensor.split(".")[1]) if tensor.startswith("blk.") else None


def short(tensor: str) -> str:
    return tensor.split(".", 2)[2] if tensor.startswith("blk.") else tensor


def score_claims(
    said: Sequence[Claim], wrong: Sequence[WrongPlace], engine: str, family: str
) -> dict[str, Any]:
    first = first_of([place.layer for place in wrong])
    named = [claim for claim in said if claim.layer == first]
    places = [place for place in wrong if place.layer == first]
    layer = bool(said and wrong) and first_of([claim.layer for claim in said]) == first
    found, expected = ({each.layer for each in some} for some in (said, wrong))
    # if something outside the layers is wrong too, slices of layers cannot be judged
    every = found <= expected if None in found else found == expected
    parts = all(is_right(claim.part, engine, family, places) for claim in named)
    return {
        "wrong": tuple(f"{p.node}-{p.layer}" for p in wrong),
        "said": tuple((str(claim.layer), claim.part) for claim in said),
        "layer": layer,
        "layers": layer and every,
        "part": layer and parts,
        "seen": bool(said),
    }


def first_of(layers: Sequence[int | None]) -> int | None:
    """Return the first wrong layer. None stands for places outside the layers, and comes first."""
    return None if None in layers or not layers else min(n for n in layers if n is not None)
