"""Messages arrive unchanged, and bytes that are not a message are refused."""

import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest

from lockstep.engine.batch import Batch
from lockstep.engine.node import Node, Operand
from lockstep.harness.processes.wire import (
    MAGIC,
    PREFIX,
    RECORDS,
    Channel,
    Closed,
    MessageLimits,
    WireError,
    pack,
)
from lockstep.harness.records import (
    DEFAULT,
    EXACT,
    LORA,
    AdapterFile,
    Captured,
    DrawAnswer,
    DrawRequest,
    EngineInfo,
    Evaluation,
    Fault,
    FileSummary,
    Request,
    SampleAnswer,
    SampleRequest,
    Settings,
    Site,
    TensorRecord,
    TensorSummary,
    Trace,
)
from tests.shadow_nodes import piece

SITE = Site(step=1, layer=3, name="l_out")
ROW = TensorSummary(name="a", ne=(32, 2), type="Q8_0", offset=64, n_bytes=68)
TRACE = Trace(
    engine="llama.cpp",
    records=(
        TensorRecord(site=SITE, value=np.arange(6, dtype=np.float32).reshape(2, 3)),
        TensorRecord(
            site=Site(step=0, layer=None, name="embd"), value=np.zeros((0, 4), np.float32)
        ),
    ),
)
FAULT = Fault(step=0, ubatch=1, index=7, kind="swap", draw=5)
NODE = Node(
    step=1,
    ubatch=0,
    index=7,
    op="ADD",
    name="l_out-0",
    layer=0,
    type="F32",
    ne=(3, 2, 1, 1),
    params=np.arange(16, dtype=np.int32),
    sources=(
        Operand(name="x", type="F32", ne=(3, 2, 1, 1), value=np.ones((1, 1, 2, 3), np.float32)),
        None,
        Operand(
            name="w", type="Q8_0", ne=(32, 1, 1, 1), value=None, weight="w", nb=(34, 34, 34, 34)
        ),
    ),
    value=np.zeros((1, 1, 2, 3), np.float32),
)
VALUES: dict[str, Any] = {
    "nothing": None,
    "plain": [True, False, 0, -(1 << 70), 1.5, -0.0, float("inf"), "é", ""],
    "ids": list(range(-1, 1200)),
    "ids in vain": [*range(1200), 1 << 70],
    "truths": [True] * 1200,
    "truths among ids": [*range(1200), True],
    "ids among lists": [[7] * 1200, [], [(1 << 63) - 1] * 1200, (3,) * 1200],
    "surrogates": b"\xff\xfe text \x00".decode("utf-8", "surrogateescape"),
    "bytes": [b"", b"\x00\xff", b"text"],
    "nested": {"a": (1, [2, (3,)], {"b": {}}), "c": ()},
    "settings": [EXACT, DEFAULT],
    "batch": Batch.of([5, 6, 7], start=4, seq_id=1),
    "request": Request(
        batches=(Batch.of([1]), Batch.of([2], start=1)),
        capture=True,
        replace={SITE: np.ones((1, 4), np.float32)},
    ),
    "sampled": [
        SampleRequest(
            chain=({"sampler": "logit_bias", "biases": ((3, float("-inf")),)},),
            logits=np.ones((1, 4), np.float32),
            accepted=((1, 2),),
            draws=np.full((1, 1), np.nan),
        ),
        DrawRequest(chain=({"sampler": "dist"},), prompt=(1, 2), seed=3),
        DrawAnswer(token=1, listed=((1, 0.75), (2, 0.25))),
        Settings(name="mine", adapters=(AdapterFile(kind=LORA, path="a.gguf", scale=0.5),)),
        SampleAnswer(
            sizes=np.ones((1, 1), np.int32),
            selected=np.zeros((1, 1), np.int32),
            ids=np.zeros(1, np.int32),
            logits=np.ones(1, np.float32),
            p=np.ones(1, np.float32),
        ),
    ],
    "evaluation": Evaluation(logits=(np.zeros((0, 8), np.float32),), trace=None),
    "traced": Evaluation(logits=(np.ones((1, 2), np.float32),), trace=TRACE),
    "engine": EngineInfo(engine="e", version="1", build="AVX", settings=DEFAULT),
    "file": FileSummary(
        version=3,
        alignment=32,
        data_offset=96,
        metadata={"k": ("ARR[F32]", [1.5, "nan"]), "s": ("STR", "\udcff")},
        tensors=(ROW,),
    ),
    "faults": [FAULT, Captured(nodes=3, views=1)],
    "node": NODE,
    "nodes": piece(NODE),
    "arrays": [
        np.zeros(shape, dtype)
        for dtype in ("bool", "float16", "float64", "int8", "int64", "uint8", "uint32")
        for shape in ((), (0,), (3,), (2, 0, 4), (2, 3, 4))
    ],
    "strided": np.arange(24).reshape(2, 3, 4)[:, ::2].T,
    "big-endian": np.arange(4, dtype=">f4"),
}


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, Channel]]:
    """Provide a raw socket, and a channel with small limits at its other end."""
    raw, other = socket.socketpair()
    channel = Channel(other, MessageLimits(head=10_000, payload=10_000))
    with raw:
        yield raw, channel
    channel.close()


def deadline() -> float:
    return time.monotonic() + 20


def same(a: Any, b: Any) -> bool:
    """Return True for equal values of the same types, bit for bit."""
    if isinstance(a, np.ndarray):
        native = a.astype(a.dtype.newbyteorder("="))
        return (
            isinstance(b, np.ndarray)
            and (a.shape, native.dtype) == (b.shape, b.dtype)
            and native.tobytes() == b.tobytes()
        )
    if type(a) is not type(b):
        return False
    if is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)


@pytest.mark.parametrize("name", VALUES)
def test_value_arrives_unchanged(name: str) -> None:
    ours, theirs = map(Channel, socket.socketpair())
    try:
        ours.send(VALUES[name], deadline())
        assert same(VALUES[name], theirs.receive(deadline()))
    finally:
        ours.close()
        theirs.close()


def test_comparison_in_this_file_finds_a_changed_bit() -> None:
    assert not same(-0.0, 0.0)
    assert not same((1,), [1])
    assert not same(np.zeros(2, np.float32), np.array([0, -0.0], np.float32))
    assert not same(VALUES["batch"], Batch.of([5, 6, 8], start=4, seq_id=1))


def test_every_transferable_record_is_tested() -> None:
    tried = json.dumps([pack(value)[1].decode() for value in VALUES.values()])
    assert [name for name in RECORDS if f'\\"{name}\\"' not in tried] == []


def test_a_message_larger_than_the_pipe_arrives() -> None:
    ours, theirs = map(Channel, socket.socketpair())
    value = np.arange(1 << 20, dtype=np.float64)
    sender = threading.Thread(target=ours.send, args=(value,))
    sender.start()
    try:
        assert same(value, theirs.receive(deadline()))
    finally:
        sender.join()
        ours.close()
        theirs.close()


@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, np.array(["text"]), np.array([object()]), 1j, Exception],
    ids=lambda value: type(value).__name__,
)
def test_unlisted_value_is_not_sent(value: Any) -> None:
    with pytest.raises(WireError, match="cannot be sent"):
        pack([value])


def frame(head: Any, payload: bytes = b"", *, magic: bytes = MAGIC) -> bytes:
    raw = head if isinstance(head, bytes) else json.dumps(head).encode()
    return PREFIX.pack(magic, len(raw), len(payload)) + raw + payload


def holding(tree: Any, arrays: Any = (), payload: bytes = b"") -> bytes:
    return frame({"arrays": list(arrays), "value": tree}, payload)


def site(**held: Any) -> dict[str, Any]:
    return {"$": "Site", "v": {"step": 0, "layer": None, "name": "embd"} | held}


GARBAGE: dict[str, tuple[bytes, str]] = {
    "no magic": (frame({}, magic=b"\x80\x04\x95\x00"), "must begin with"),
    "huge head": (struct.pack("<4sIQ", MAGIC, 1 << 31, 0), "head of 2147483648 bytes"),
    "huge payload": (struct.pack("<4sIQ", MAGIC, 2, 1 << 60), "payload of"),
    "no JSON": (frame(b"not JSON"), "head is not a message"),
    "no UTF-8": (frame(b'"\xff"'), "head is not a message"),
    "no value": (frame({"arrays": []}), "head is not a message"),
    "a list": (frame([1]), "head is not a message"),
    "deep nesting": (frame(b'{"arrays": [], "value": ' + b"[" * 5000), "head is not a message"),
    "object dtype": (holding(None, [["object", [1]]], b"12345678"), "head is not a message"),
    "text dtype": (holding(None, [["<U4", [1]]], bytes(16)), "head is not a message"),
    "negative shape": (holding(None, [["uint8", [-1, -4]]], bytes(4)), "no shape"),
    "fractional shape": (holding(None, [["uint8", [4.0]]], bytes(4)), "no shape"),
    "many dimensions": (holding(None, [["uint8", [1] * 40]], bytes(1)), "no shape"),
    "absurd but empty": (holding(None, [["uint8", [1 << 40, 1 << 40, 0]]]), "too large"),
    "short payload": (holding(None, [["float32", [4]]], bytes(15)), "in a payload of 15"),
    "long payload": (holding(None, [["float32", [4]]], bytes(17)), "in a payload of 17"),
    "unknown array": (holding({"$": "array", "v": 0}), "no array number 0"),
    "last array": (holding({"$": "array", "v": -1}, [["uint8", [1]]], b"a"), "no array number -1"),
    "true array": (holding({"$": "array", "v": True}, [["uint8", [2]]], b"ab"), "no array number"),
    "wide bytes": (holding({"$": "bytes", "v": 0}, [["int16", [1]]], b"ab"), "row of uint8"),
    "wide ids": (holding({"$": "ints", "v": 0}, [["int64", [1, 1]]], bytes(8)), "row of int64"),
    "narrow ids": (holding({"$": "ints", "v": 0}, [["int32", [1]]], bytes(4)), "row of int64"),
    "no ids": (holding({"$": "ints", "v": 0}), "no array number 0"),
    "unknown record": (holding({"$": "Popen", "v": {"args": "id"}}), "no record named"),
    "no tag": (holding({"a": 1}), "tree is not a value"),
    "missing field": (holding({"$": "Site", "v": {"step": 0}}), "has the fields"),
    "extra field": (holding(site(more=1)), "has the fields"),
    "text for a number": (holding(site(step="0")), "Site.step must be"),
    "truth for a number": (holding(site(step=True)), "Site.step must be"),
    "list for a name": (holding(site(name=["embd"])), "Site.name must be"),
    "unhashable key": (holding({"$": "dict", "v": [[[1], 2]]}), "tree is not a value"),
    "odd pair": (holding({"$": "dict", "v": [[1, 2, 3]]}), "tree is not a value"),
    "wrong dtype in a record": (
        holding(
            {
                "$": "Evaluation",
                "v": {"logits": {"$": "tuple", "v": [{"$": "array", "v": 0}]}, "trace": None},
            },
            [["float64", [1]]],
            bytes(8),
        ),
        r"each item an array of float32, got a tuple with an array of float64 in the shape \(1,\)",
    ),
    "list in a record": (
        holding({"$": "Evaluation", "v": {"logits": [1.0], "trace": None}}),
        "Evaluation.logits must be a tuple, each item an array of float32, got a list",
    ),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_refused(name: str, ends: tuple[socket.socket, Channel]) -> None:
    raw, channel = ends
    sent, complaint = GARBAGE[name]
    raw.sendall(sent)
    with pytest.raises(WireError, match=complaint):
        channel.receive(deadline())


def test_valid_message_built_like_the_garbage_is_accepted(
    ends: tuple[socket.socket, Channel],
) -> None:
    raw, channel = ends
    raw.sendall(holding([site(), {"$": "array", "v": 0}], [["float32", [2]]], bytes(8)))
    arrived = channel.receive(deadline())
    assert arrived[0] == Site(step=0, layer=None, name="embd")
    assert arrived[1].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("sent", [0, 1, 20, -1], ids=["nothing", "prefix", "head", "payload"])
def test_incomplete_frame_ends_the_connection(
    sent: int, ends: tuple[socket.socket, Channel]
) -> None:
    raw, channel = ends
    raw.sendall(holding(None, [["uint8", [100]]], bytes(100))[:sent])
    raw.close()
    with pytest.raises(Closed):
        channel.receive(deadline())


def test_receive_times_out_on_an_incomplete_frame(
    ends: tuple[socket.socket, Channel],
) -> None:
    raw, channel = ends
    raw.sendall(MAGIC)
    with pytest.raises(TimeoutError):
        channel.receive(time.monotonic() + 0.05)
