"""Engines with malformed answers, one for each kind of malformed form, and with well-formed wrong
answers."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.engine.batch import Batch
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.context.runner import Session
from lockstep.harness.records import (
    Answered,
    Captured,
    Fault,
    FileSummary,
    Outcome,
    TensorRecord,
    Trace,
)
from tests.fake_engines import SUM

Spoil = Callable[[Any], Any]
EVERYWHERE = ("evaluate", "tokenize", "detokenize", "greedy", "metadata", "dequantize", "capture")


class Honest(Reference, name="fake-honest"):
    """Our own engine, which also shows a graph of one node."""

    def capture(
        self, batches: Sequence[Batch], fault: Fault | None, emit: Callable[[Any], None]
    ) -> Captured:
        emit(SUM)
        return Captured(nodes=1, views=0)


def lying(name: str, question: str, spoil: Callable[[Any], Any]) -> type[Adapter]:
    """Return an honest engine whose answers to one question, or whose shown graph, are spoiled."""

    def answer(self: Any, *args: Any, **kwargs: Any) -> Any:
        if question == "pieces":
            return Honest.capture(self, *args, lambda piece: kwargs["emit"](spoil(piece)))
        return spoil(getattr(Honest, question)(self, *args, **kwargs))

    method = "capture" if question == "pieces" else question
    return type("Liar", (Honest,), {method: answer}, name=name)


class Saying(Session):
    """A session whose engine always gives the same answer."""

    name = "fake"

    def __init__(self, value: Any) -> None:
        self.value = value

    def _ask(self, *_: Any) -> Outcome:
        return Answered(value=self.value, seconds=0.0)


def logits(spoil: Callable[[Any], Any]) -> Spoil:
    """Spoil the logits of every batch."""
    return lambda run: replace(run, logits=tuple(map(spoil, run.logits)))


def trace(spoil: Callable[[tuple[TensorRecord, ...]], Any]) -> Spoil:
    """Return a function that spoils the records of a run's trace, if the run has a trace."""

    def spoilt(run: Any) -> Any:
        if run.trace is None:
            return run
        return replace(run, trace=replace(run.trace, records=spoil(run.trace.records)))

    return spoilt


def site(**changes: Any) -> Spoil:
    """Spoil the site of the second record, `attn_norm-0` of the prompt."""
    return trace(lambda r: (r[0], replace(r[1], site=replace(r[1].site, **changes)), *r[2:]))


def value(spoil: Callable[[Any], Any]) -> Spoil:
    return trace(lambda r: (r[0], replace(r[1], value=spoil(r[1].value)), *r[2:]))


def tensor(**changes: Any) -> Spoil:
    """Spoil the last row of the table of tensors."""

    def spoilt(file: FileSummary) -> FileSummary:
        return replace(file, tensors=(*file.tensors[:-1], replace(file.tensors[-1], **changes)))

    return spoilt


def each(spoil: Callable[[Any], Any]) -> Spoil:
    return lambda rows: [spoil(row) for row in rows]


def first_id(token: Any) -> Spoil:
    return each(lambda ids: [token, *ids[1:]])


def column(name: str, spoil: Callable[[Any], Any]) -> Spoil:
    return lambda nodes: replace(nodes, **{name: spoil(getattr(nodes, name))})


LIES: dict[str, tuple[str, Spoil]] = {
    **{
        f"{question} answers {name}": (question, lambda _, held=held: held)
        for question in EVERYWHERE
        for name, held in {
            "None": None,
            "a function": lambda: 1,
            "a class of exceptions": ValueError,
            "a generator": (i for i in ()),
        }.items()
    },
    "logits: None": ("evaluate", lambda run: replace(run, logits=None)),
    "logits: no batch": ("evaluate", lambda run: replace(run, logits=())),
    "logits: the first batch": ("evaluate", lambda run: replace(run, logits=run.logits[:1])),
    "logits: a batch more": ("evaluate", lambda run: replace(run, logits=2 * run.logits)),
    "logits: a list": ("evaluate", lambda run: replace(run, logits=[*run.logits])),
    "logits: one array": ("evaluate", lambda run: replace(run, logits=run.logits[0])),
    "logits: one column": ("evaluate", logits(lambda x: x[:, :1])),
    "logits: a column less": ("evaluate", logits(lambda x: x[:, 1:])),
    "logits: no column": ("evaluate", logits(lambda x: x[:, :0])),
    "logits: a row more": ("evaluate", logits(lambda x: np.concatenate([x, x[:1]]))),
    "logits: transposed": ("evaluate", logits(lambda x: x.T)),
    "logits: flat": ("evaluate", logits(lambda x: x.reshape(-1))),
    "logits: a dimension more": ("evaluate", logits(lambda x: x[None])),
    "logits: a number": ("evaluate", logits(lambda x: 1.0)),
    "logits: a scalar of numpy": ("evaluate", logits(lambda x: np.float32(1))),
    "logits: nested lists": ("evaluate", logits(lambda x: x.tolist())),
    "logits: float64": ("evaluate", logits(lambda x: x.astype(np.float64))),
    "logits: float16": ("evaluate", logits(lambda x: x.astype(np.float16))),
    "logits: big-endian": ("evaluate", logits(lambda x: x.astype(">f4"))),
    "logits: int32": ("evaluate", logits(lambda x: x.astype(np.int32))),
    "logits: complex": ("evaluate", logits(lambda x: x.astype(np.complex64))),
    "logits: strings": ("evaluate", logits(lambda x: x.astype(str))),
    "logits: objects": ("evaluate", logits(lambda x: x.astype(object))),
    "logits: masked": ("evaluate", logits(np.ma.masked_invalid)),
    "trace: None": ("evaluate", lambda run: replace(run, trace=None)),
    "trace: another type": ("evaluate", lambda run: replace(run, trace={})),
    "trace: no site": ("evaluate", trace(lambda records: ())),
    "trace: a list": ("evaluate", trace(list)),
    "trace: bare arrays": ("evaluate", trace(lambda records: tuple(r.value for r in records))),
    "trace: though nobody asked": (
        "evaluate",
        lambda run: replace(run, trace=run.trace or Trace(engine="fake", records=())),
    ),
    "site: twice": ("evaluate", trace(lambda records: (*records, records[0]))),
    "site: a string": ("evaluate", trace(lambda r: (replace(r[0], site="embd"), *r[1:]))),
    "site: unknown": ("evaluate", site(name="attn_nrom")),
    "site: a name of bytes": ("evaluate", site(name=b"attn_norm")),
    "site: a step that nobody asked for": ("evaluate", site(step=7)),
    "site: a negative step": ("evaluate", site(step=-1)),
    "site: layer 999": ("evaluate", site(layer=999)),
    "site: layer -1": ("evaluate", site(layer=-1)),
    "site: layer True": ("evaluate", site(layer=True)),
    "site: no layer": ("evaluate", site(layer=None)),
    "site: a layer outside of the layers": ("evaluate", site(name="result_norm")),
    "tensor: objects": ("evaluate", value(lambda x: x.astype(object))),
    "tensor: transposed": ("evaluate", value(lambda x: x.T)),
    "tensor: a token less": ("evaluate", value(lambda x: x[1:])),
    "tensor: no token": ("evaluate", value(lambda x: x[:0])),
    "tensor: half of the width": ("evaluate", value(lambda x: x[:, ::2])),
    "tensor: a list": ("evaluate", value(lambda x: x.tolist())),
    "ids: of too few texts": ("tokenize", lambda rows: rows[:-1]),
    "ids: of too many texts": ("tokenize", lambda rows: [*rows, []]),
    "ids: a tuple": ("tokenize", tuple),
    "ids: nested too deep": ("tokenize", each(lambda ids: [ids])),
    "ids: not nested": ("tokenize", each(lambda ids: 5)),
    "ids: arrays": ("tokenize", each(np.array)),
    "ids: negative": ("tokenize", first_id(-1)),
    "ids: beyond the vocabulary": ("tokenize", first_id(384)),
    "ids: of 41 bits": ("tokenize", first_id(1 << 40)),
    "ids: of 40,000 bits": ("tokenize", first_id(1 << 40_000)),
    "ids: True": ("tokenize", first_id(True)),
    "ids: floats": ("tokenize", first_id(5.0)),
    "ids: numpy's": ("tokenize", first_id(np.int64(5))),
    "texts: too few": ("detokenize", lambda texts: texts[:-1]),
    "texts: str": ("detokenize", each(bytes.hex)),
    "texts: bytearrays": ("detokenize", each(bytearray)),
    "greedy: too few": ("greedy", lambda ids: ids[:-1]),
    "greedy: too many": ("greedy", lambda ids: [*ids, 1]),
    "greedy: beyond the vocabulary": ("greedy", lambda ids: [384, *ids[1:]]),
    "greedy: negative": ("greedy", lambda ids: [-1, *ids[1:]]),
    "greedy: an array": ("greedy", np.array),
    "file: tensors without their bytes": ("metadata", tensor(n_bytes=0)),
    "file: n_bytes of 2^62": ("metadata", tensor(n_bytes=1 << 62)),
    "file: a row of 2^62": ("metadata", tensor(ne=(1 << 62,), n_bytes=1 << 64)),
    "file: negative n_bytes": ("metadata", tensor(n_bytes=-64)),
    "file: an offset beyond it": ("metadata", tensor(offset=1 << 40)),
    "file: an offset of 2^62": ("metadata", tensor(offset=1 << 62)),
    "file: a negative offset": ("metadata", tensor(offset=-32)),
    "file: its data begins behind it": ("metadata", lambda f: replace(f, data_offset=1 << 30)),
    "file: its data begins before it": ("metadata", lambda f: replace(f, data_offset=-1)),
    "file: a tensor twice": ("metadata", lambda f: replace(f, tensors=2 * f.tensors)),
    "file: another shape": ("metadata", tensor(ne=(5, 7))),
    "file: no dimension": ("metadata", tensor(ne=(), n_bytes=4)),
    "file: nine dimensions": ("metadata", tensor(ne=(1,) * 9, n_bytes=4)),
    "file: half a block": ("metadata", tensor(type="Q4_0", ne=(16,), n_bytes=9)),
    "file: a name of bytes": ("metadata", tensor(name=b"output.weight")),
    "file: tensors in a dict": ("metadata", lambda f: replace(f, tensors={})),
    "file: bare names": ("metadata", lambda f: replace(f, tensors=("output.weight",))),
    "file: a value of numpy": (
        "metadata",
        lambda f: replace(f, metadata={**f.metadata, "general.name": ("STR", np.zeros(3))}),
    ),
    "file: a type that is none": (
        "metadata",
        lambda f: replace(f, metadata={**f.metadata, "general.name": ("TEXT", "x")}),
    ),
    "file: bare values": (
        "metadata",
        lambda f: replace(f, metadata={key: held for key, (_, held) in f.metadata.items()}),
    ),
    "weights: one less": ("dequantize", lambda x: x[:-1]),
    "weights: none": ("dequantize", lambda x: x[:0]),
    "weights: float64": ("dequantize", lambda x: x.astype(np.float64)),
    "weights: in rows": ("dequantize", lambda x: x.reshape(-1, 1)),
    "weights: a list": ("dequantize", list),
    "nodes: not whole": ("pieces", column("step", lambda x: x[:-1])),
    "nodes: of a step that nobody asked for": ("pieces", column("step", lambda x: x + 9)),
    "nodes: outside of the data": ("pieces", column("at", lambda x: x + 10**6)),
    "nodes: of an unknown op": ("pieces", column("op", lambda x: x + 7)),
    "nodes: another dtype": ("pieces", column("ne", lambda x: x.astype(np.float64))),
    "nodes: None": ("pieces", lambda _: None),
    "nodes: a negative number": ("capture", lambda done: replace(done, nodes=-1)),
    "nodes: a fault of objects": (
        "capture",
        lambda done: replace(done, honest=np.array([None])),
    ),
}
# well-formed answers, which are compared, and none of which may pass
UNTRUE: dict[str, Spoil] = {
    "no tensors": lambda f: replace(f, tensors=()),
    "no sizes": lambda f: replace(
        f, tensors=tuple(replace(t, ne=(0,), n_bytes=0) for t in f.tensors)
    ),
    "one tensor": lambda f: replace(f, tensors=f.tensors[:1]),
    "an unknown type": tensor(type="Q9_9"),
}
for name, lie in LIES.items():
    lying(f"fake-liar: {name}", *lie)
for name, spoil in UNTRUE.items():
    lying(f"fake-untrue: {name}", "metadata", spoil)
