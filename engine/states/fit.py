"""Comparison of a state file with a model and a context: yields every mismatch."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np

from lockstep.engine.architectures.base import Architecture
from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.hparams import Keys, architecture_name
from lockstep.engine.memory.recurrent import States
from lockstep.engine.memory.store import KeysValues
from lockstep.engine.states.file import PartKind, SavedPart, SavedState, SavedStream, StateLayout

MisfitKind = Literal[
    "architecture",
    "vocabulary",
    "parts",
    "layers",
    "width",
    "type",
    "cells",
    "tokens",
    "sequences",
    "streams",
    "transposed",
]
Widths = dict[str, tuple[int, ...]]  # by name of rows: number of elements in a cell, layer by layer


@dataclass(frozen=True)
class PartShape:
    """Shape of a part of a memory. n_layers: the number that a file states; for recurrent states,
    all layers of the model.
    """

    kind: PartKind
    n_layers: int
    widths: Widths


@dataclass(frozen=True)
class StateShape:
    """The shape of a model's memory. parts: None for an architecture that Lockstep does not
    implement.
    """

    architecture: str
    n_vocab: int
    n_layers: int
    parts: tuple[PartShape, ...] | None

    @property
    def layouts(self) -> tuple[StateLayout, ...]:
        """Return the layout of the model's files, if it is known, for `read_state`."""
        if self.parts is None:
            return ()
        values = all(part.widths["v"] for part in self.parts if part.kind == "attention")
        tables = sum(2 * len(part.widths["r"]) for part in self.parts if part.kind == "recurrent")
        kinds = tuple(part.kind for part in self.parts)
        return (StateLayout(kinds, values=values, tables=tables),)


@dataclass(frozen=True, kw_only=True)
class ContextLimits:
    """Limits of the context that will load a file."""

    n_ctx: int  # number of tokens and cells
    n_sequences: int
    n_streams: int
    type_k: str
    type_v: str
    transposed: bool


@dataclass(frozen=True)
class Misfit:
    """Mismatch between a file and a model. where: the part and layer, or "" for the whole file."""

    kind: MisfitKind
    where: str
    expected: str
    got: str

    def __str__(self) -> str:
        where = f" of {self.where}" if self.where else ""
        return f"{self.kind}{where}: expected {self.expected}, got {self.got}"


def shape_of_model(file: GgufFile) -> StateShape:
    """Return the shape of a model's memory. Raises InvalidModel for a file that is not a model."""
    name = architecture_name(file.metadata)
    keys = Keys(file.metadata, name)
    n_vocab, n_layers = keys.vocabulary_size(), keys.positive("block_count")
    try:
        graph = Architecture.member(name)(file)
    except Unsupported:
        return StateShape(name, n_vocab, n_layers, None)
    kept = [graph.memory_of_layer(layer) for layer in range(n_layers)] if graph.causal else []
    cached = [each for each in kept if isinstance(each, KeysValues)]
    states = [each for each in kept if isinstance(each, States)]
    windows = any(each.window for each in cached)
    parts = [attention_shape([each for each in cached if not each.window])] if cached else []
    parts += [attention_shape([each for each in cached if each.window])] if windows else []
    parts += [recurrent_shape(states, n_layers)] if states else []
    return StateShape(name, n_vocab, n_layers, tuple(parts))


def attention_shape(layers: list[KeysValues]) -> PartShape:
    keys = tuple(each.n_head_kv * each.n_embd_head_k for each in layers)
    values = tuple(each.n_head_kv * each.n_embd_head_v for each in layers)
    return PartShape("attention", len(layers), {"k": keys, "v": values if all(values) else ()})


def recurrent_shape(layers: list[States], n_layers: int) -> PartShape:
    """Return the shape of recurrent states; a layer with only a convolution has a state of size
    0."""
    tails = tuple(prod(each.shapes[0]) for each in layers)
    states = tuple(prod(each.shapes[1]) if len(each.shapes) > 1 else 0 for each in layers)
    return PartShape("recurrent", n_layers, {"r": tails, "s": states})


def find_misfits(
    state: SavedState, shape: StateShape, limits: ContextLimits | None = None
) -> Iterator[Misfit]:
    """Yield all differences from the model and, if given, the context."""
    if state.architecture not in (None, shape.architecture):
        yield Misfit("architecture", "", shape.architecture, str(state.architecture))
    outside = np.flatnonzero((state.tokens < 0) | (state.tokens >= shape.n_vocab))
    if len(outside):
        at = int(outside[0])
        got = f"{len(outside)} other ids, such as {state.tokens[at]} at {at}"
        yield Misfit("vocabulary", "the tokens", f"0 to {shape.n_vocab - 1}", got)
    if limits is not None and len(state.tokens) > limits.n_ctx:
        yield Misfit("tokens", "", f"at most {limits.n_ctx}", str(len(state.tokens)))
    yield from find_misfit_parts(state, shape)
    for part in state.parts if limits is not None else ():
        assert limits is not None
        yield from find_over_limits(part, limits)


def find_misfit_parts(state: SavedState, shape: StateShape) -> Iterator[Misfit]:
    if shape.parts is None:
        for part in state.parts:
            if max(stream.n_layers for stream in part.streams) > shape.n_layers:
                got = str(max(stream.n_layers for stream in part.streams))
                yield Misfit("layers", part.kind, f"at most {shape.n_layers}", got)
        return
    kinds = [part.kind for part in shape.parts]
    if kinds != [part.kind for part in state.parts] or state.layout.extra:
        found: list[str] = [part.kind for part in state.parts]
        found += ["positions in two dimensions"] if state.layout.extra else []
        yield Misfit("parts", "", ", ".join(kinds) or "none", ", ".join(found) or "none")
        return
    for wanted, part in zip(shape.parts, state.parts, strict=True):
        for stream in part.streams:
            if len(stream.cells) or part.kind == "recurrent":
                yield from find_misfit_layers(wanted, stream)


def find_misfit_layers(wanted: PartShape, stream: SavedStream) -> Iterator[Misfit]:
    if stream.n_layers != wanted.n_layers:
        yield Misfit("layers", wanted.kind, str(wanted.n_layers), str(stream.n_layers))
        return
    for name, widths in wanted.widths.items():
        rows = [each for each in stream.rows if each.name == name]
        if len(rows) != len(widths):
            yield Misfit("layers", name, str(len(widths)), str(len(rows)))
            continue
        for each, width in zip(rows, widths, strict=True):
            if each.width != width:
                yield Misfit("width", f"{name} of layer {each.index}", str(width), str(each.width))


def find_over_limits(part: SavedPart, limits: ContextLimits) -> Iterator[Misfit]:
    if part.kind == "attention" and len(part.streams) != limits.n_streams:
        yield Misfit("streams", part.kind, str(limits.n_streams), str(len(part.streams)))
    most = limits.n_ctx if part.kind == "attention" else limits.n_sequences
    types = {"k": limits.type_k, "v": limits.type_v, "r": "F32", "s": "F32"}
    for stream in part.streams:
        if len(stream.cells) > most:
            yield Misfit("cells", part.kind, f"at most {most}", str(len(stream.cells)))
        if any(id >= limits.n_sequences for id in stream.cells.sequences()):
            got = str(stream.cells.sequences()[-1])
            yield Misfit("sequences", part.kind, f"0 to {limits.n_sequences - 1}", got)
        if part.kind == "attention" and stream.rows and stream.transposed != limits.transposed:
            yield Misfit("transposed", "v", str(limits.transposed), str(stream.transposed))
        for each in stream.rows:
            if each.type.name != types[each.name]:
                where = f"{each.name} of layer {each.index}"
                yield Misfit("type", where, types[each.name], each.type.name)
