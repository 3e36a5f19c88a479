"""The protocol's questions about runs: logits, embeddings, and intermediate tensors."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.harness.answers import MalformedAnswer
from lockstep.harness.protocol.frames import Message
from lockstep.harness.records import Evaluation, Request, Site, TensorRecord, Trace


def send_logits(request: Request) -> Message:
    head = {
        "ask": "logits",
        "batches": [batch_row(batch) for batch in request.batches],
        "trace": request.capture,
    }
    return Message(head=head, arrays={key_of(s): v for s, v in request.replace.items()})


def batch_row(batch: Batch) -> dict[str, list[int] | bool]:
    return {
        "tokens": batch.tokens.tolist(),
        "positions": batch.positions.tolist(),
        "sequences": batch.seq_ids.tolist(),
        "outputs": batch.outputs.astype(int).tolist(),
        "encoder": batch.encoder,
    }


def send_embed(batches: Sequence[Batch]) -> Message:
    return Message(head={"ask": "embed", "batches": [batch_row(batch) for batch in batches]})


def send_save(
    batches: Sequence[Batch], then: Sequence[Batch], path: str, sequence: int | None = None
) -> Message:
    head = {
        "ask": "save",
        "path": path,
        "sequence": sequence,
        "batches": [batch_row(batch) for batch in batches],
        "then": [batch_row(batch) for batch in then],
    }
    return Message(head=head)


def send_load(path: str, then: Sequence[Batch], sequence: int | None = None) -> Message:
    head = {"ask": "load", "path": path, "sequence": sequence}
    return Message(head={**head, "then": [batch_row(batch) for batch in then]})


def send_guide(batches: Sequence[Batch], negative: Sequence[Batch], scale: float) -> Message:
    head = {
        "ask": "guide",
        "scale": scale,
        "batches": [batch_row(batch) for batch in batches],
        "negative": [batch_row(batch) for batch in negative],
    }
    return Message(head=head)


def read_rows(answer: Message, rows: str) -> tuple[NDArray[Any], ...]:
    found: list[NDArray[Any]] = []
    while (name := f"{rows}{len(found)}") in answer.arrays:
        found.append(answer.arrays[name])
    return tuple(found)


def send_embeddings(request: Request) -> Message:
    """Return the question `embed`, with the tensors to show or to replace."""
    asked = send_logits(request)
    return replace(asked, head={**asked.head, "ask": "embed"})


def read_run(answer: Message, rows: str) -> Evaluation:
    """Read `logits0`, `logits1`, ... in the order of the batches. All other arrays form the
    trace."""
    arrays = dict(answer.arrays)
    logits: list[NDArray[Any]] = []
    while (name := f"{rows}{len(logits)}") in arrays:
        logits.append(arrays.pop(name))
    records = [TensorRecord(site=site_of(key), value=value) for key, value in arrays.items()]
    trace = Trace(engine="", records=tuple(records)) if records else None
    return Evaluation(logits=tuple(logits), trace=trace)


def key_of(site: Site) -> str:
    """Return a key such as step0/attn_norm-3, in the form that `lockstep trace` writes."""
    return f"step{site.step}/{site}"


def site_of(key: str) -> Site:
    step, _, node = key.partition("/")
    name, dash, layer = node.rpartition("-")
    inside = dash and layer.isdecimal() and len(layer) < 7
    number = step.removeprefix("step")
    if not step.startswith("step") or not number.isdecimal() or len(number) > 6:
        raise MalformedAnswer("the name of an array", "logitsN, rowsN or stepN/NODE", key)
    return Site(
        step=int(number), layer=int(layer) if inside else None, name=name if inside else node
    )
