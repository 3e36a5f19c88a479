"""Dequantisation vectors: named blocks of every weight format with their decoded weights."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.gguf.types import type_by_name
from lockstep.engine.quants.base import F32, WeightFormat
from lockstep.engine.registry import import_members
from lockstep.golden.suites.base import AskedEngine, Case, Golden, Source, Vectors, Verdicts
from lockstep.golden.suites.parts.blocks import named_blocks
from lockstep.harness.adapters.ieee754 import NUMBERS as PLAIN
from lockstep.harness.judging.compare import bits, mismatch_between
from lockstep.harness.records import Verdict

NUMBERS = "ieee754"  # the oracle for types that llama.cpp stores but does not decode
COMPARE = "the bits of each float32, so that -0.0 is not 0.0; any NaN equals any NaN"


class GoldenDequant(Golden, name="dequant"):
    def make(self, source: Source, what: str) -> Vectors:
        source.progress(f"{what}: decoded blocks")
        kind = type_by_name(what)
        named = named_blocks(WeightFormat.member(what), source.seed)
        raw = np.frombuffer(b"".join(named.values()), np.uint8)
        values = source.ask("dequantize", what, raw).reshape(-1, kind.block)
        values = with_one_nan(values)
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
            yield f"the tensor 'expected' has shape {got}, but the blocks say {want}"

    def cases(self, vectors: Vectors) -> Mapping[str, Any]:
        document = vectors.document
        found: Case = {key: document[key] for key in ("provenance", "type", "compare")}
        for row, values in zip(document["blocks"], vectors.tensors["expected"], strict=True):
            found[row["id"]] = values
            found[f"{row['id']}: input"] = row["hex"]
        return found

    def replay(self, vectors: Vectors, ask: AskedEngine, verdict: Verdicts) -> Iterator[Verdict]:
        document, expected = vectors.document, vectors.tensors["expected"]
        kind, blocks = document["type"], document["blocks"]
        raw = np.frombuffer(bytes.fromhex("".join(row["hex"] for row in blocks)), np.uint8)
        got: NDArray[np.float32] = ask("dequantize", kind, raw)
        if got.size != expected.size:
            text = f"{kind}: {got.size} values, expected {expected.size}"
            yield verdict("diverged", text, key=f"size/{kind}")
            return
        got = with_one_nan(got.reshape(expected.shape))
        differ = bits(expected) != bits(got)
        if not differ.any():
            text = f"{kind}: {len(blocks)} blocks agree bit for bit"
            yield verdict("agreed", text, {"bit_exact": True})
            return
        worst = mismatch_between(expected, got, 0.0)  # None if only signs of zeros differ
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


def with_one_nan(values: F32) -> F32:
    """Replace every NaN by the same NaN, because the bits of a NaN depend on the processor."""
    return np.where(np.isnan(values), np.float32(np.nan), values)


def types() -> dict[str, str | None]:
    """Return every weight format, in the order of ggml's ids, each with its oracle, or None for the
    usual oracle."""
    import_members("lockstep.engine.quants")
    formats = sorted(WeightFormat.family.values(), key=lambda kind: kind.type_id)
    return {kind.name: NUMBERS if kind.name in PLAIN else None for kind in formats}
