"""Dequantisation vectors: blocks with every odd scale, every stored value and every place."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.ggml_types import type_by_name
from golden.store import BrokenGolden
from golden.suites.base import Asked, Case, Golden, Source, Vectors, Verdicts
from harness.compare import mismatch_between
from harness.records import Verdict
from harness.suites.dequant import bits
from harness.synth.generator import stream

SCALES = {  # bit patterns of a half
    "zero": 0x0000,
    "minus-zero": 0x8000,
    "least-subnormal": 0x0001,
    "minus-least-subnormal": 0x8001,
    "largest-subnormal": 0x03FF,
    "least-normal": 0x0400,
    "third": 0x3555,
    "one": 0x3C00,
    "minus-one": 0xBC00,
    "largest": 0x7BFF,
    "minus-largest": 0xFBFF,
    "infinite": 0x7C00,
    "minus-infinite": 0xFC00,
    "quiet-nan": 0x7E00,
    "minus-quiet-nan": 0xFE00,
    "signalling-nan": 0x7C01,
    "longest-nan": 0x7FFF,
}
NEUTRAL = {"Q8_0": (0x00, 34), "Q4_0": (0x88, 18)}  # byte that decodes to zero; bytes of a block
TYPES = tuple(NEUTRAL)
RANDOM = 64
COMPARE = "the bits of each float32, so that -0.0 is not 0.0; any NaN equals any NaN"


class Dequant(Golden, name="dequant"):
    def make(self, source: Source, what: str) -> Vectors:
        source.progress(f"{what}: decoded blocks")
        kind = type_by_name(what)
        named = blocks_of(what, source.seed)
        raw = np.frombuffer(b"".join(named.values()), np.uint8)
        values = source.ask("dequantize", what, raw).reshape(-1, kind.block)
        body = {
            "type": what,
            "block_bytes": kind.bytes,
            "block_weights": kind.block,
            "compare": COMPARE,
            "blocks": [{"id": name, "hex": block.hex()} for name, block in named.items()],
        }
        return Vectors(document={**source.head("dequant"), **body}, tensors={"expected": values})

    def inconsistencies(self, vectors: Vectors) -> Iterator[str]:
        document = vectors.document
        for row in document["blocks"]:
            if len(row["hex"]) != 2 * document["block_bytes"]:
                yield f"block {row['id']} has {len(row['hex']) // 2} bytes"
        if len({row["id"] for row in document["blocks"]}) != len(document["blocks"]):
            yield "two blocks have the same id"
        want = (len(document["blocks"]), document["block_weights"])
        got = vectors.tensors.get("expected", np.empty(0)).shape
        if got != want:
            yield f"the tensor 'expected' has shape {got}, the blocks say {want}"

    def cases(self, vectors: Vectors) -> Mapping[str, Any]:
        document = vectors.document
        found: Case = {key: document[key] for key in ("provenance", "type", "compare")}
        for row, values in zip(document["blocks"], vectors.tensors["expected"], strict=True):
            found[row["id"]] = values
            found[f"{row['id']}: input"] = row["hex"]
        return found

    def replay(self, vectors: Vectors, ask: Asked, verdict: Verdicts) -> Iterator[Verdict]:
        document, expected = vectors.document, vectors.tensors["expected"]
        kind, blocks = document["type"], document["blocks"]
        raw = np.frombuffer(bytes.fromhex("".join(row["hex"] for row in blocks)), np.uint8)
        got: NDArray[np.float32] = ask("dequantize", kind, raw)
        if got.size != expected.size:
            text = f"{kind}: {got.size} values, expected {expected.size}"
            yield verdict("diverged", text, key=f"size/{kind}")
            return
        got = got.reshape(expected.shape)
        differ = bits(expected) != bits(got)
        exact = bool((expected.view(np.uint32) == got.view(np.uint32)).all())
        if not differ.any():
            text = f"{kind}: {len(blocks)} blocks agree bit for bit"
            yield verdict("agreed", text, {"bit_exact": exact})
            return
        worst = mismatch_between(expected, got, 0.0)  # None if only the signs of zeros differ
        row, column = worst.index if worst else tuple(int(i) for i in np.argwhere(differ)[0])
        detail = {
            "block": blocks[row]["id"],
            "column": column,
            "expected": float(expected[row, column]),
            "actual": float(got[row, column]),
            "mismatched": int(differ.sum()),
        }
        text = (
            f"{kind}: {detail['mismatched']} weights in {int(differ.any(axis=1).sum())} of "
            f"{len(blocks)} blocks differ; {detail['block']}, weight {column} is "
            f"{detail['actual']:.9g}, expected {detail['expected']:.9g}"
        )
        yield verdict("diverged", text, detail, key=f"value/{kind}")


def blocks_of(kind: str, seed: int) -> dict[str, bytes]:
    """Named blocks of Q8_0 or Q4_0: a half as the scale, then bytes."""
    if kind not in NEUTRAL:
        raise BrokenGolden(f"no vectors of {kind!r} are made (known: {', '.join(TYPES)})")
    neutral, size = NEUTRAL[kind]
    n = size - 2
    found: dict[str, bytes] = {}
    for name, scale in SCALES.items():
        found[f"scale-{name}-ends"] = block(scale, ends(n))
        found[f"scale-{name}-neutral"] = block(scale, bytes([neutral] * n))
    for name in ("one", "third", "minus-one"):
        for first in range(0, 256, n):
            values = bytes(range(first, first + n))
            found[f"bytes-{first:02x}-to-{first + n - 1:02x}-scale-{name}"] = block(
                SCALES[name], values
            )
    for at in range(n):
        for value in (0x81, 0x18) if kind == "Q4_0" else (0x01,):
            place = bytes(value if i == at else neutral for i in range(n))
            found[f"place-{at:02d}-{value:02x}"] = block(SCALES["one"], place)
    rows = drawn(seed, f"golden.{kind}", RANDOM, size)
    for i, row in enumerate(rows):
        found[f"random-{i:02d}"] = row
        # the same with a scale like those of real weights
        found[f"random-{i:02d}-small"] = row[:1] + bytes([row[1] & 0x83 | 0x20]) + row[2:]
    return found


def block(scale: int, values: bytes) -> bytes:
    return scale.to_bytes(2, "little") + values


def ends(n: int) -> bytes:
    """The smallest, the largest and those around zero, over and over."""
    return (bytes([0x80, 0x7F, 0x00, 0x01, 0xFF, 0x81, 0x08, 0xF0]) * n)[:n]


def drawn(seed: int, name: str, rows: int, size: int) -> list[bytes]:
    raw = (stream(seed, name).random_raw(rows * size) >> np.uint64(56)).astype(np.uint8)
    return [row.tobytes() for row in raw.reshape(rows, size)]
