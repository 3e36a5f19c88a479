"""A folder of tensors that an engine has written, to be checked later: `--engine dump:FOLDER`.

    index.json     {"engine": "mine", "version": "1", "tokens": [[1, 5, 9], [2], [7]]}
    *.safetensors  step0/embd, step0/attn_norm-0, ..., step0/result_output, step1/embd, ...

"tokens" holds the ids of each batch. All batches form one sequence that begins at position 0.
`lockstep trace` writes the same format, so its index shows which ids to run. Any node may be
missing, except for the result. The result is the logits (result_output), or result_embd_pooled for
a model without logits. It has a row for each token, or for each sequence if the model pools. The
index may state cache settings ("settings": {"type_k": "F16", ...}) and the model
("models": [{"sha256": ...}]). Then llama.cpp runs with these settings, and Lockstep refuses a file
with another hash. A map (node_maps) translates other names. The index names the map
(`"map": "transformers"`, or a path relative to the folder), or the command does
(`dump:FOLDER#map=MAP`). A tensor without `stepN/` belongs to step 0.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from lockstep.engine.batch import Batch
from lockstep.engine.choices import choices
from lockstep.engine.errors import EngineError, InvalidModel
from lockstep.engine.gguf.regular_file import check_regular, read_regular
from lockstep.harness.answers import MalformedAnswer
from lockstep.harness.asking.session import Session
from lockstep.harness.dumps.node_maps import NodeMap, not_found, read_map, ready
from lockstep.harness.dumps.room import check_room
from lockstep.harness.dumps.values import HeldTensor, values_of
from lockstep.harness.judging.stored import KINDS, ROUNDED, looks_like
from lockstep.harness.protocol.messages import printable, settings_of
from lockstep.harness.protocol.runs import site_of
from lockstep.harness.records import (
    EXACT,
    Answered,
    EngineInfo,
    Evaluation,
    Malformed,
    Outcome,
    Rejected,
    Request,
    Settings,
    Site,
    TensorRecord,
    Trace,
    Unanswerable,
)
from lockstep.harness.report.header import sha256_of
from lockstep.harness.sites import SITES

PREFIX, MAP = "dump:", "#map="
INDEX = "index.json"
LARGEST_INDEX = 64 << 20
MOST_TOKENS = 1 << 20
MOST_BATCHES = 512  # each costs a run of the oracle, and of each honest run
LOGITS, EMBEDDINGS = "result_output", "result_embd_pooled"
WIDE = ("F32", "F64")
NUMERIC = ("type_k", "type_v", "flash_attn", "n_threads")
STEP = re.compile(r"step[0-9]{1,6}/")
# other extensions of files with tensors
OTHER_KINDS = (".npy", ".npz", ".bin", ".raw", ".pt", ".dat")
MOST_FILES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Dump:
    """The content of the index, and the file that holds each tensor."""

    folder: Path
    engine: str
    version: str
    batches: tuple[Batch, ...]
    files: Mapping[Site, HeldTensor]
    settings: Mapping[str, Any]  # known settings
    models: tuple[str, ...]  # hashes of the model's file, if known
    strangers: tuple[str, ...] = ()  # names that match no pattern of the map
    map: NodeMap | None = None


def folder_of(engine: str) -> Path | None:
    """Return the dump's folder; None if the engine's name does not mean a dump."""
    place = engine.removeprefix(PREFIX).rpartition(MAP)
    return Path(place[0] or place[2]) if engine.startswith(PREFIX) else None


def map_of(engine: str) -> str:
    """Return the name of the map after #map= in the engine's name; "" if the name has no map."""
    folder, _, name = engine.removeprefix(PREFIX).rpartition(MAP)
    return name if folder else ""


def read_dump(folder: Path, map_name: str = "") -> Dump:
    """Read a dump. `map_name` is a built-in map, or a file in the working folder. If it is "", the
    index may name a map in the dump's folder. Raises EngineError, whose message names the missing
    or wrong part of a file."""
    path = folder / INDEX
    check_inside(folder, path)
    try:
        index = json.loads(read_regular(path, LARGEST_INDEX))
    except OSError as error:
        text = f"{path}: {error.strerror or error}; lockstep trace writes an example of a dump"
        raise InvalidModel(text) from error
    except (ValueError, RecursionError) as error:
        raise InvalidModel(f"{path}: not JSON: {error}") from error
    if type(index) is not dict:
        raise InvalidModel(f"{path}: expected an object, got a {type(index).__name__}")
    batches = batches_of(path, index.get("tokens"))
    said = index.get("engines") or [index]  # an index that lockstep wrote
    who = said[0] if type(said) is list and type(said[0]) is dict else {}
    settings = recorded_settings(path, who.get("settings", {}))
    names = map_in(path, index, map_name)
    files, strangers = sites_in(folder, len(batches), names)
    check_room(folder, (held.path for held in files.values()))
    return Dump(
        folder=folder,
        engine=printable(str(who.get("engine", folder.name))),
        version=printable(str(who.get("version", "unknown"))),
        batches=batches,
        files=files,
        settings=settings,
        models=hashes_in(index.get("models")),
        strangers=strangers,
        map=names,
    )


def recorded_settings(path: Path, said: Any) -> dict[str, Any]:
    """Return the recorded settings that affect numbers. Raises InvalidModel if they are
    malformed."""
    known = {key: said[key] for key in NUMERIC if key in said} if type(said) is dict else said
    try:
        settings_of(EXACT, known)
    except MalformedAnswer as error:
        raise InvalidModel(f"{path}: {error}") from error
    return dict(known)


def hashes_in(models: Any) -> tuple[str, ...]:
    rows = models if type(models) is list else []
    rows = [row for row in rows if type(row) is dict and row.get("role") in ("both", "subject")]
    return tuple(row["sha256"] for row in rows if type(row.get("sha256")) is str)


def check_model(dump: Dump, path: Path) -> None:
    """Check that the dump's run used this file. Raises InvalidModel if it did not."""
    if not dump.models:
        return
    found = sha256_of(path)
    if found not in dump.models:
        raise InvalidModel(
            f"{dump.folder / INDEX}: the run used a model with sha256 "
            f"{printable(dump.models[0][:64])}, but {path} has {found}: check the dump "
            "with its own model"
        )


def check_map(dump: Dump, architecture: str) -> None:
    """Check that the map is for this architecture. Raises InvalidModel if not, because with a wrong
    map Lockstep would accuse the engine."""
    of = dump.map.architectures if dump.map else ()
    if dump.map and of and architecture not in of:
        raise InvalidModel(
            f"the map {dump.map.name} is for files of {', '.join(of)}, but this file is "
            f"{architecture}; write your own map: --map FILE"
        )


def map_in(path: Path, index: Mapping[str, Any], name: str) -> NodeMap | None:
    if name:
        return read_map(name)
    said = index.get("map")
    if said is not None and type(said) is not str:
        raise InvalidModel(f'{path}: "map" must be the name of a map, or a file')
    if said and said not in ready():
        check_inside(path.parent, path.parent / said)
    return read_map(said, path.parent) if said else None


def check_inside(folder: Path, path: Path) -> None:
    """Raise InvalidModel for a path outside the dump's folder, because dumps are untrusted."""
    try:
        inside = path.resolve().is_relative_to(folder.resolve())
    # a loop of links or a NUL; opening the file reports it
    except (OSError, ValueError, RuntimeError):
        return
    if not inside:
        raise InvalidModel(f"{path} is outside the dump's folder: copy it there, or use --map")


def batches_of(path: Path, tokens: Any) -> tuple[Batch, ...]:
    """Return the batches of one sequence. Each batch continues where the previous batch ends.
    Raises InvalidModel for malformed tokens."""
    good = type(tokens) is list and bool(tokens) and all(type(row) is list for row in tokens)
    if not good or not all(tokens) or sum(map(len, tokens)) > MOST_TOKENS:
        raise InvalidModel(f'{path}: "tokens" must be a list of lists of ids, one for each batch')
    if len(tokens) > MOST_BATCHES:
        raise InvalidModel(
            f"{path}: {len(tokens)} batches, expected at most {MOST_BATCHES}: put more tokens into "
            "each batch"
        )
    for token in (token for row in tokens for token in row):
        if type(token) is not int or not 0 <= token < 1 << 31:
            raise InvalidModel(f'{path}: "tokens" holds {token!r:.40}, which is not an id')
    starts = (0, *accumulate(map(len, tokens)))
    return tuple(Batch.of(row, start=at) for row, at in zip(tokens, starts, strict=False))


def sites_in(
    folder: Path, steps: int, names: NodeMap | None
) -> tuple[dict[Site, HeldTensor], tuple[str, ...]]:
    """Return the tensor for each site, and the names that the map does not translate."""
    found: dict[Site, HeldTensor] = {}
    strangers: list[str] = []
    for path in sorted(folder.glob("*.safetensors")):
        check_inside(folder, path)
        for key, kind in kinds_in(path).items():
            held = translate_name(path, key, kind, names)
            if held is None:
                strangers.append(key)
                continue
            site = site_in(path, *held)
            if site.step >= steps or site in found:
                why = (
                    "occurs twice"
                    if site in found
                    else f"does not belong to any of {steps} batches"
                )
                raise InvalidModel(f"{path}: {key} {why}")
            found[site] = held[1]
    for step in range(steps):
        if not any(result(step, name) in found for name in (LOGITS, EMBEDDINGS)):
            of = f" ({not_found(strangers)}: no pattern of {names.name} fits)" if names else ""
            of = of or next((f"; {unknown(each)}" for each in found if each.name not in SITES), "")
            of = of or other_files(folder)
            ends = f"step{step}/{LOGITS} (for embeddings: step{step}/{EMBEDDINGS})"
            raise InvalidModel(f"{folder}: no tensor {ends} in any *.safetensors{of}")
    return found, tuple(strangers)


def result(step: int, name: str) -> Site:
    return Site(step=step, layer=None, name=name)


def other_files(folder: Path) -> str:
    """Return a clause that names an unsupported file format in the folder, for a folder without
    tensors; "" if the folder has none."""
    there = {path.suffix for path in islice(folder.iterdir(), MOST_FILES)}
    kind = next((kind for kind in OTHER_KINDS if kind in there), "")
    return f"; Lockstep does not read *{kind}" if kind else ""


def unknown(site: Site) -> str:
    maps = ", ".join(ready())
    known = choices(site.name, SITES)
    return f"no node named {site.name!r} {known}; --map translates other names ({maps})"


def kinds_in(path: Path) -> dict[str, str]:
    """Return the data type of each tensor in a file, by name."""
    try:
        check_regular(path)
        with safe_open(path, framework="numpy") as file:
            names = list(file.keys())
            found = {key: str(file.get_slice(key).get_dtype()) for key in names}
    except (SafetensorError, OSError) as error:
        raise InvalidModel(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    for key, kind in found.items():
        if kind not in KINDS:
            raise InvalidModel(f"{path}: {key[:80]!r} is of type {kind}, not {', '.join(KINDS)}")
    return found


def translate_name(
    path: Path, key: str, kind: str, names: NodeMap | None
) -> tuple[str, HeldTensor] | None:
    """Return the name as `stepN/NODE`, and the tensor; None if the map has no rule for the name."""
    if names is None:
        return key, HeldTensor(path=path, key=key, kind=kind)
    match = STEP.match(key)
    step = match[0] if match else "step0/"
    found = names.find(key.removeprefix(step))
    if found is None:
        return None
    return step + found[0], HeldTensor(path=path, key=key, kind=kind, rule=found[1])


def site_in(path: Path, name: str, held: HeldTensor) -> Site:
    try:
        site = site_of(name)
    except MalformedAnswer as error:
        raise InvalidModel(f"{path}: {error}") from error
    return site


class DumpSession(Session):
    """A session that answers only questions about the run that the dump contains."""

    def __init__(
        self, folder: Path, model: Path | None, settings: Settings, map_name: str = ""
    ) -> None:
        self.name, self.map_name = folder.name or str(folder), map_name
        self.folder, self.model, self.settings = folder, model, settings
        self.dump: Dump | None = None
        self.rounded = ""  # the type to which all wider floats had been rounded

    def _ask(
        self,
        question: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        consume: Callable[[Any], None] | None = None,
    ) -> Outcome:
        try:
            self.dump = self.dump or read_dump(self.folder, self.map_name)
            if question == "describe":
                return Answered(value=self.info(self.dump), seconds=0.0)
            if question == "embed":
                outcome = self.evaluate(self.dump, Request(batches=args[0], embeddings=True))
                rows = outcome.value.logits if isinstance(outcome, Answered) else None
                return outcome if rows is None else replace(outcome, value=rows)
            if question != "evaluate":
                return Unanswerable(message=f"a dump cannot answer {question}", declared=True)
            return self.evaluate(self.dump, args[0])
        except EngineError as error:
            return Rejected(message=str(error))
        except (SafetensorError, OSError, ValueError, TypeError) as error:
            return Malformed(message=printable(f"{self.folder}: {error}"))

    @property
    def stored(self) -> Mapping[Site, str]:
        files = self.dump.files if self.dump else {}
        kinds = {k: self.rounded for k in WIDE if self.rounded} | {k: k for k in ROUNDED}
        return {site: kinds[held.kind] for site, held in files.items() if held.kind in kinds}

    def info(self, dump: Dump) -> EngineInfo:
        names = {site.name for site in dump.files}
        return EngineInfo(
            engine=self.name,
            version=f"{dump.engine} {dump.version}",
            settings=replace(self.settings, **dump.settings),
            shows=tuple(sorted(names)),
            fixed=tuple({*SITES, *names}),
            partial=True,
            unmapped=dump.strangers,
        )

    def evaluate(self, dump: Dump, request: Request) -> Outcome:
        if not same(request.batches, dump.batches):
            text = "a dump holds one run, and this question needs a different run"
            return Unanswerable(message=text, declared=True)
        if request.replace:
            return Unanswerable(message="Lockstep cannot put values into a dump", declared=True)
        name = EMBEDDINGS if request.embeddings else LOGITS
        ends = [result(step, name) for step in range(len(dump.batches))]
        if not all(site in dump.files for site in ends):
            return Unanswerable(message=f"the dump lacks {name} of a batch", declared=True)
        sizes = self.facts.axes
        values = values_of(dump.files, sizes)
        wide = (site for site, held in dump.files.items() if held.kind in WIDE)
        self.rounded = looks_like(values[site] for site in wide)
        rows = (values[site] for site in ends)
        # our sites lack this name, so leading axes of size one remain
        outputs = tuple(r.reshape(-1, r.shape[-1]) if request.embeddings else r for r in rows)
        records = tuple(TensorRecord(site=site, value=v) for site, v in values.items())
        trace = Trace(engine=self.name, records=records) if request.capture else None
        return Answered(value=Evaluation(logits=outputs, trace=trace), seconds=0.0)


def same(a: tuple[Batch, ...], b: tuple[Batch, ...]) -> bool:
    return len(a) == len(b) and all(
        np.array_equal(x.tokens, y.tokens) and np.array_equal(x.positions, y.positions)
        for x, y in zip(a, b, strict=True)
    )
