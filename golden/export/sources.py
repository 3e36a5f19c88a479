"""A document with its tensors as one C file: the definitions for its level's header."""

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lockstep.golden.export.literals import array, definition, set_name, string, table
from lockstep.golden.export.op_sources import ops
from lockstep.golden.suites.base import Vectors

Row = Mapping[str, Any]
VERDICTS = {"valid": "VALID", "invalid": "INVALID", "implementation-defined": "EITHER"}


def c_source(level: str, name: str, vectors: Vectors) -> str:
    """Return a C source. name: the document's name, such as `q4_k`; the name of the C set is
    `set_name(name)`."""
    lines = [f'#include "{level}.h"', "", "#include <math.h>", "", *SOURCES[level](name, vectors)]
    return "\n".join(lines) + "\n"


def c_table(level: str, names: Sequence[str]) -> str:
    """Return vectors.c, which lists all sets."""
    sets = [set_name(name) for name in names]
    lines = [f'#include "{level}.h"', ""]
    lines += [f"extern const struct {level}_set {each};" for each in sets]
    lines += ["", f"const struct {level}_set *const sets[] = {{"]
    lines += [*(f"    &{each}," for each in sets), "    NULL,", "};"]
    return "\n".join(lines) + "\n"


def dequant(name: str, vectors: Vectors) -> Iterator[str]:
    document = vectors.document
    n_bytes, n_weights = document["block_bytes"], document["block_weights"]
    raw = b"".join(bytes.fromhex(block["hex"]) for block in document["blocks"])
    yield from array("blocks", np.frombuffer(raw, np.uint8))
    yield from array("expected", vectors.tensors["expected"])
    yield from table(
        "static const struct dequant_case cases[]",
        [
            f"{string(block['id'])}, blocks + {i * n_bytes}, expected + {i * n_weights}"
            for i, block in enumerate(document["blocks"])
        ],
    )
    count = len(document["blocks"])
    fields = (string(document["type"]), str(n_bytes), str(n_weights), str(count), "cases")
    yield from definition("dequant", name, *fields)


def dot(name: str, vectors: Vectors) -> Iterator[str]:
    document = vectors.document
    raw = b"".join(map(bytes.fromhex, document["weights"]))
    yield from array("weights", np.frombuffer(raw, np.uint8))
    tensors = ("activations", "expected", "allowed", "plain", "plain_allowed")
    for tensor in tensors:
        yield from array(tensor, vectors.tensors[tensor])
    sizes = (document["rows"], document["columns"], len(raw) // document["rows"])
    fields = [string(document["type"]), string(document["vec_dot_type"]), *map(str, sizes)]
    fields += [str(document["tokens"]), "weights", *tensors]
    fields += [string(document["reason"]), string(document["plain_reason"])]
    yield from definition("dot", name, *fields)


def logits(name: str, vectors: Vectors) -> Iterator[str]:
    document = vectors.document
    for tokens in ("prompt", "greedy"):
        yield from array(tokens, np.array(document[tokens], np.int32))
    yield from array("rows", vectors.tensors["logits"])
    model, tolerance = document["model"], document["tolerance"]
    counts = (len(document["prompt"]), len(document["greedy"]), vectors.tensors["logits"].shape[1])
    fields = [string(model["name"]), string(model["sha256"]), *map(str, counts)]
    fields += ["prompt", "greedy", "rows", repr(tolerance["allowed"]), string(tolerance["reason"])]
    yield from definition("logits", name, *fields)


def files(name: str, vectors: Vectors) -> Iterator[str]:
    document = vectors.document
    raw = base64.b64decode(document["base64"])
    yield from array("bytes", np.frombuffer(raw, np.uint8))
    verdict, why = VERDICTS[document["verdict"]], string(document["why"])
    yield from definition(
        "files", name, string(document["fault"]), verdict, why, str(len(raw)), "bytes"
    )


def tokens(name: str, vectors: Vectors) -> Iterator[str]:
    document = vectors.document
    whole = document["kind"] == "vocabulary"
    encodes = list((encodes_of_vocabulary if whole else encodes_of_tokens)(document))
    decodes = list((decodes_of_vocabulary if whole else decodes_of_tokens)(document))
    pool = Pool()
    encode = [
        f"{string(case)}, {pool.text(raw)}, {add:d}, {parse:d}, {pool.ids(ids)}"
        for case, raw, add, parse, ids in encodes
    ]
    decode = [
        f"{string(case)}, {pool.ids(ids)}, {remove:d}, {unparse:d}, {pool.text(raw)}"
        for case, ids, remove, unparse, raw in decodes
    ]
    yield from array("texts", np.frombuffer(bytes(pool.texts), np.uint8))
    yield from array("ids", np.array(pool.numbers, np.int32))
    yield from table("static const struct encode_case encodes[]", encode or ["0"])
    yield from table("static const struct decode_case decodes[]", decode or ["0"])
    fields = [string(document["model"][key]) for key in ("name", "sha256")]
    fields += [str(len(encode)), str(len(decode)), "encodes", "decodes"]
    yield from definition("tokens", name, *fields)


class Pool:
    """The bytes and ids of all cases; equal bytes or ids are stored once."""

    def __init__(self) -> None:
        self.texts, self.numbers = bytearray(), list[int]()
        self.at: dict[bytes | tuple[int, ...], int] = {}

    def text(self, raw: bytes) -> str:
        if raw not in self.at:
            self.at[raw] = len(self.texts)
            self.texts += raw
        return f"texts + {self.at[raw]}, {len(raw)}"

    def ids(self, ids: Sequence[int]) -> str:
        key = tuple(ids)
        if key not in self.at:
            self.at[key] = len(self.numbers)
            self.numbers += key
        return f"ids + {self.at[key]}, {len(key)}"


Encode = tuple[str, bytes, bool, bool, Sequence[int]]
Decode = tuple[str, Sequence[int], bool, bool, bytes]


def encodes_of_tokens(document: Row) -> Iterator[Encode]:
    for row in document["encode"]:
        raw = bytes.fromhex(row["hex"])
        yield row["id"], raw, row["add_special"], row["parse_special"], row["ids"]


def decodes_of_tokens(document: Row) -> Iterator[Decode]:
    for row in document["decode"]:
        raw = bytes.fromhex(row["hex"])
        yield row["id"], row["ids"], row["remove_special"], row["unparse_special"], raw
    for row in document["pieces"]:
        flags = row["remove_special"], row["unparse_special"]
        for i, piece in enumerate(row["hex"]):
            yield f"{row['id']}-{i}", [i], *flags, bytes.fromhex(piece)


def encodes_of_vocabulary(document: Row) -> Iterator[Encode]:
    for case in document["cases"]:
        raw = base64.b64decode(case["base64"])
        for way, ids in case["ids"].items():
            flags = document["ways"][way]
            yield f"{case['id']}-{way}", raw, flags["add_special"], flags["parse_special"], ids


def decodes_of_vocabulary(document: Row) -> Iterator[Decode]:
    for case in document["cases"]:
        back = case["base64"] if case["back"] is None else case["back"]
        yield f"{case['id']}-back", case["ids"]["plain"], False, False, base64.b64decode(back)
    pieces = document["pieces"]
    for way, unparse in (("full", True), ("plain", False)):
        for token, piece in zip(pieces["ids"], pieces[way], strict=True):
            yield f"piece-{token}-{way}", [token], False, unparse, bytes.fromhex(piece)


SOURCES: dict[str, Callable[[str, Vectors], Iterator[str]]] = {
    "dequant": dequant,
    "dot": dot,
    "logits": logits,
    "files": files,
    "tokens": tokens,
    "ops": ops,
}
