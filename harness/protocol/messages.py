"""The questions of the protocol, with the content of each question and the required content of its
answer.

This module converts an answer to the harness's own records. Then harness.answers checks the
answer's numbers, as for every engine. A missing name, list or array raises MalformedAnswer.
"""

import base64
import binascii
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.types import type_by_name
from lockstep.harness.adapters.parts.file_summary import shape
from lockstep.harness.answers import MalformedAnswer
from lockstep.harness.protocol.frames import Message
from lockstep.harness.protocol.runs import (
    read_rows,
    read_run,
    send_embed,
    send_embeddings,
    send_guide,
    send_load,
    send_logits,
    send_save,
)
from lockstep.harness.protocol.sampling import read_sample, send_sample
from lockstep.harness.records import (
    CACHE_TYPES,
    CONTROL_VECTOR,
    LORA,
    EngineInfo,
    FileSummary,
    Settings,
    TensorSummary,
)
from lockstep.harness.sites import SITES

VERSION = 1
# levels that an engine may declare, from the least to the most
LEVELS = (
    *("parse", "tokenize", "detokenize", "dequantize", "multiply", "operate"),
    *(
        "sample",
        "embed",
        "generate",
        "greedy",
        "logprobs",
        "logits",
        "save",
        "load",
        "guide",
        "trace",
        "replace",
    ),
)
ADAPTERS = (LORA, CONTROL_VECTOR)  # kinds of files that an engine may add to a model
UNSENT = ("generic", "repack", "adapters", "turned")
SETTINGS = tuple(f.name for f in fields(Settings) if f.name not in UNSENT)
INFINITIES = {"inf": math.inf, "-inf": -math.inf}
MOST_SETTING = 1 << 20  # largest number of cells or tokens
MOST_THREADS = 512  # GGML_MAX_N_THREADS in ggml.h: with more, llama.cpp would die and be blamed
LONGEST_TEXT = 2000  # characters of an engine's own message
LONGEST_NAME, MOST_NAMES = 64, 4096  # names of nodes: GGML_MAX_NAME in ggml.h

Read = Callable[..., Any]


@dataclass(frozen=True)
class Question:
    """The form of one of the adapter's questions in the protocol."""

    level: str
    send: Callable[..., Message]
    read: Read  # arguments: the answer and the question; returns the adapter's answer


@dataclass(frozen=True, kw_only=True)
class Introduction:
    """The message that an engine sends at its start."""

    info: EngineInfo
    can: frozenset[str]


def start(model: str | None, settings: Settings) -> Message:
    knobs = {name: getattr(settings, name) for name in SETTINGS}
    head = {"ask": "start", "protocol": VERSION, "model": model, "settings": knobs}
    if settings.adapters:
        head["adapters"] = [
            {"kind": each.kind, "path": str(Path(each.path).resolve()), "scale": each.scale}
            for each in settings.adapters
        ]
    return Message(head=head)


def introduction(name: str, asked: Settings, answer: Message) -> Introduction:
    said = answer.head["answer"]
    if type(said) is not dict:
        raise MalformedAnswer('"answer" to start', "an object", said)
    if said.get("protocol") != VERSION:
        raise MalformedAnswer('"protocol"', str(VERSION), said.get("protocol"))
    can = texts_of(said, "can", (*LEVELS, *ADAPTERS))
    shows = names_of(said, "shows") if "shows" in said else tuple(SITES)
    replaces = names_of(said, "replaces") if "replaces" in said else shows
    if "trace" not in can:
        shows = ()
    if "replace" not in can:
        replaces = ()
    info = EngineInfo(
        engine=name,
        version=f"{text_of(said, 'engine')} {text_of(said, 'version')}",
        build=text_of(said, "build") if "build" in said else "",
        settings=settings_of(asked, said.get("settings", {})),
        shows=None if shows == tuple(SITES) else shows,
        fixed=tuple(name for name in dict.fromkeys((*SITES, *shows)) if name not in replaces),
        levels=can,
        utf8_only=unicode_of(said),
    )
    return Introduction(info=info, can=frozenset(can))


def unicode_of(said: Mapping[str, Any]) -> bool:
    """Return True if the engine says that its texts are always UTF-8, because its language can
    express no other texts. Raises MalformedAnswer for another value."""
    if said.get("text", "bytes") not in ("bytes", "utf8"):
        raise MalformedAnswer('"text"', '"bytes" or "utf8"', said["text"])
    return said.get("text") == "utf8"


def settings_of(asked: Settings, said: Any) -> Settings:
    """Return the settings that the engine really uses. They may differ from `asked`, because an
    engine need not support every setting. Raises MalformedAnswer for wrong values."""
    if type(said) is not dict or not said.keys() <= set(SETTINGS):
        raise MalformedAnswer('"settings"', f"an object with some of {', '.join(SETTINGS)}", said)
    for name, value in said.items():
        if type(value) is not type(getattr(asked, name)):
            raise MalformedAnswer(f'"settings", {name}', f"such as {getattr(asked, name)!r}", value)
        # llama.cpp gets the same settings, and would be blamed for refusing them
        if name in ("type_k", "type_v") and value not in CACHE_TYPES:
            raise MalformedAnswer(f'"settings", {name}', f"one of {', '.join(CACHE_TYPES)}", value)
        most = MOST_THREADS if name == "n_threads" else MOST_SETTING
        if type(value) is int and not 1 <= value <= most:
            raise MalformedAnswer(f'"settings", {name}', f"1 to {most}", value)
    return replace(asked, **said)


def text_of(said: Mapping[str, Any], key: str) -> str:
    if type(said.get(key)) is not str or not said[key]:
        raise MalformedAnswer(f'"{key}"', "a text", said.get(key))
    return printable(said[key])


def texts_of(said: Mapping[str, Any], key: str, known: Collection[str]) -> tuple[str, ...]:
    found = said.get(key)
    if type(found) is not list or not all(type(name) is str for name in found):
        raise MalformedAnswer(f'"{key}"', "a list of texts", found)
    for name in found:
        if name not in known:
            raise MalformedAnswer(f'"{key}"', f"some of {', '.join(known)}", name)
    return tuple(name for name in known if name in found)


def names_of(said: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return the names of nodes. Names in harness.sites come first, in their order. Any name in
    llama.cpp's graph of a model is allowed."""
    found = said.get(key)
    if type(found) is not list or len(found) > MOST_NAMES:
        raise MalformedAnswer(f'"{key}"', f"a list of up to {MOST_NAMES} names", found)
    for name in found:
        if type(name) is not str or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
            raise MalformedAnswer(f'"{key}"', "names of nodes", name)
    return tuple(dict.fromkeys([*(name for name in SITES if name in found), *found]))


def printable(text: str) -> str:
    """Return an engine's text as one line without control characters."""
    return "".join(c if c.isprintable() else " " for c in text[:LONGEST_TEXT]).strip()


# --- files ------------------------------------------------------------------------------------


def read_parse(answer: Message) -> FileSummary:
    """Read a file summary. Fields that the engine's reader does not show are listed as unknown. The
    reader must show either all types or none."""
    said = answer.head["answer"]
    unknown = [
        name for name in ("version", "alignment", "data_offset", "tensors") if name not in said
    ]
    keys = said["metadata"]
    if keys and all(kind is None for kind, _ in keys.values()):
        unknown.append("types")
    return FileSummary(
        version=said.get("version", 0),
        alignment=said.get("alignment", 0),
        data_offset=said.get("data_offset", 0),
        metadata={
            key: (kind or "", value_of(kind or "", value)) for key, (kind, value) in keys.items()
        },
        tensors=tuple(tensor_of(row) for row in said.get("tensors", ())),
        unknown=tuple(unknown),
    )


def value_of(kind: str, said: Any) -> Any:
    """Return a metadata value from JSON, where NaN and infinities are texts. "inf" and "-inf"
    become numbers only if `kind` is a float type, because "inf" may also be a token's text. NaN
    stays a text, as in our records."""
    if not kind.removeprefix("ARR[").startswith(("F32", "F64")):
        return said
    if type(said) is list:
        return [INFINITIES.get(x, x) if type(x) is str else x for x in said]
    return INFINITIES.get(said, said) if type(said) is str else said


def tensor_of(row: Mapping[str, Any]) -> TensorSummary:
    """Return the summary of a tensor. If the size in bytes is missing, compute it from type and
    shape."""
    ne = shape(row["ne"])
    return TensorSummary(
        name=row["name"],
        ne=ne,
        type=row["type"],
        offset=row["offset"],
        n_bytes=row["n_bytes"] if "n_bytes" in row else bytes_of(row["type"], ne),
    )


def bytes_of(type_name: str, ne: Sequence[int]) -> int:
    try:
        kind = type_by_name(type_name)
    except Unsupported as error:
        raise MalformedAnswer("a tensor's type", "a type of ggml", type_name) from error
    return math.prod(ne) // kind.block * kind.bytes


# --- text -------------------------------------------------------------------------------------


def send_tokenize(
    texts: Sequence[bytes], *, add_special: bool = True, parse_special: bool = False
) -> Message:
    head = {"ask": "tokenize", "texts": [base64.b64encode(text).decode() for text in texts]}
    return Message(head={**head, "add_special": add_special, "parse_special": parse_special})


def send_detokenize(
    ids: Sequence[Sequence[int]], *, remove_special: bool, unparse_special: bool
) -> Message:
    head = {"ask": "detokenize", "ids": [list(map(int, row)) for row in ids]}
    return Message(
        head={**head, "remove_special": remove_special, "unparse_special": unparse_special}
    )


def read_detokenize(answer: Message) -> list[bytes]:
    return [decode_base64(text, '"texts"') for text in answer.head["answer"]["texts"]]


def decode_base64(text: str, where: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise MalformedAnswer(where, "base64", str(error)) from error


def send_greedy(prompt: Sequence[int], n: int) -> Message:
    return Message(head={"ask": "greedy", "prompt": list(map(int, prompt)), "n": n})


def read_ids(answer: Message) -> Any:
    return answer.head["answer"]["ids"]


def send_generate(prompt: bytes, n: int) -> Message:
    return Message(head={"ask": "generate", "prompt": base64.b64encode(prompt).decode(), "n": n})


def read_generate(answer: Message) -> bytes:
    return decode_base64(answer.head["answer"]["text"], '"text"')


def send_logprobs(prefixes: Sequence[Sequence[int] | bytes], k: int) -> Message:
    rows = [list(map(int, prefix)) for prefix in prefixes]
    return Message(head={"ask": "logprobs", "prefixes": rows, "k": k})


def read_logprobs(answer: Message) -> list[list[tuple[Any, float]]]:
    """Read lists of candidates. Tokens are ids, or texts in base64."""
    said = answer.head["answer"]
    tokens = said["ids"] if "ids" in said else texts_in(said["texts"])
    return [
        [*zip(row, map(number_of, values), strict=True)]
        for row, values in zip(tokens, said["logprobs"], strict=True)
    ]


def texts_in(rows: Any) -> list[list[bytes]]:
    return [[decode_base64(text, '"texts"') for text in row] for row in rows]


def number_of(said: Any) -> float:
    """Return a number. NaN and infinities are texts in JSON."""
    if type(said) is str and said in (*INFINITIES, "nan"):
        return float(said)
    if type(said) not in (int, float):
        raise MalformedAnswer('"logprobs"', 'numbers, "nan", "inf" or "-inf"', said)
    return float(said)


# --- single computations ----------------------------------------------------------------------


def send_dequantize(type_name: str, raw: NDArray[np.uint8]) -> Message:
    return Message(head={"ask": "dequantize", "type": type_name}, arrays={"raw": raw})


def send_multiply(type_name: str, raw: NDArray[np.uint8], x: NDArray[np.float32]) -> Message:
    return Message(head={"ask": "multiply", "type": type_name}, arrays={"raw": raw, "x": x})


def send_operate(
    op: str, inputs: Mapping[str, NDArray[Any]], params: Mapping[str, int | float | str]
) -> Message:
    """Send an operation. Booleans are sent as u8."""
    arrays = {k: v.astype(np.uint8) if v.dtype == bool else v for k, v in inputs.items()}
    return Message(head={"ask": "operate", "op": op, "params": dict(params)}, arrays=arrays)


def array_named(name: str) -> Read:
    def read(answer: Message) -> NDArray[Any]:
        if name not in answer.arrays:
            raise MalformedAnswer("the arrays", f"one named {name!r}", list(answer.arrays)[:5])
        return answer.arrays[name]

    return read


QUESTIONS: dict[str, Question] = {
    "metadata": Question("parse", lambda: Message(head={"ask": "parse"}), read_parse),
    "tokenize": Question("tokenize", send_tokenize, read_ids),
    "detokenize": Question("detokenize", send_detokenize, read_detokenize),
    "dequantize": Question("dequantize", send_dequantize, array_named("weights")),
    "multiply": Question("multiply", send_multiply, array_named("product")),
    "operate": Question("operate", send_operate, lambda answer: dict(answer.arrays)),
    "sample": Question("sample", send_sample, read_sample),
    "embed": Question("embed", send_embed, partial(read_rows, rows="rows")),
    "save": Question("save", send_save, partial(read_rows, rows="logits")),
    "load": Question("load", send_load, partial(read_rows, rows="logits")),
    "guide": Question("guide", send_guide, partial(read_rows, rows="logits")),
    "greedy": Question("greedy", send_greedy, read_ids),
    "generate": Question("generate", send_generate, read_generate),
    "logprobs": Question("logprobs", send_logprobs, read_logprobs),
    "evaluate": Question("logits", send_logits, partial(read_run, rows="logits")),
}
EMBEDDINGS = Question("embed", send_embeddings, partial(read_run, rows="rows"))


def question_of(question: str, args: Sequence[Any], can: Collection[str]) -> Question:
    """Return the form of a question, for an engine with these levels. For a run of a model without
    logits, the question is `embed`."""
    if question == "evaluate" and args[0].embeddings and EMBEDDINGS.level in can:
        return EMBEDDINGS
    return QUESTIONS[question]
