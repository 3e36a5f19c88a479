"""Vectors of a model's weights: the hash of every decoded tensor, and seeded pieces with their
values."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.gguf.file import GgufFile, TensorInfo
from lockstep.engine.gguf.types import type_by_name
from lockstep.engine.quants.base import F32
from lockstep.golden.suites.base import AskedEngine, Case, Golden, Source, Vectors, Verdicts
from lockstep.golden.suites.dequant import with_one_nan
from lockstep.harness.context.suite import NoAnswer
from lockstep.harness.judging.compare import bits, mismatch_between
from lockstep.harness.records import Verdict
from lockstep.harness.synth.draws import integers, stream

CHUNK = 1 << 22  # weights decoded at a time
PIECES = 16  # pieces of each type
LONGEST = 1024  # weights in a piece
COMPARE = (
    "sha256 of all weights of a tensor as little-endian float32, in the file's order, every NaN as "
    "0x7fc00000; the pieces bit for bit, so that -0.0 is not 0.0, and any NaN equals any NaN"
)


class GoldenWeights(Golden, name="weights"):
    def make(self, source: Source, what: str) -> Vectors:
        assert source.path is not None
        tensors, left_out = [], {}
        with GgufFile.open(source.path) as file:
            for i, info in enumerate(file.tensors.values()):
                if info.type.name in left_out:
                    continue
                source.progress(f"{what}: weights {i + 1}/{len(file.tensors)}: {info.name}")
                try:
                    tensors.append(row_of(info, sha256_of(file, info, source.ask)))
                except NoAnswer as error:
                    left_out[info.type.name] = error.summary
            if not tensors:
                raise NoAnswer("not-compared", "; ".join(left_out.values()), {})
            pieces, values = pieces_of(file, source, {row["type"] for row in tensors})
        body = {
            "model": source.model,
            "compare": COMPARE,
            "tensors_of_model": tensors,
            "left_out": left_out,
            "pieces": pieces,
        }
        return Vectors(
            document={**source.head("weights"), **body}, tensors={"values": np.concatenate(values)}
        )

    def inconsistencies(self, vectors: Vectors) -> Iterator[str]:
        pieces = vectors.document["pieces"]
        names = [row["name"] for row in vectors.document["tensors_of_model"]]
        if len(set(names)) != len(names):
            yield "a tensor is listed twice"
        starts = np.cumsum([0, *(row["weights"] for row in pieces)])
        if [row["at"] for row in pieces] != starts[:-1].tolist():
            yield "the pieces do not follow one another"
        if vectors.tensors.get("values", np.empty(0)).shape != (starts[-1],):
            yield "the tensor 'values' does not hold the weights of all pieces"

    def cases(self, vectors: Vectors) -> Mapping[str, Any]:
        document, values = vectors.document, vectors.tensors["values"]
        found: Case = {key: document[key] for key in ("provenance", "model", "left_out")}
        found |= {row["name"]: row for row in document["tensors_of_model"]}
        for row in document["pieces"]:
            name = f"{row['tensor']}, from weight {row['first']}"
            found[name] = values[row["at"] : row["at"] + row["weights"]]
        return found

    def replay(self, vectors: Vectors, ask: AskedEngine, verdict: Verdicts) -> Iterator[Verdict]:
        """Yield one verdict for each type that agrees, and one for each tensor that differs."""
        assert ask.path is not None
        rows: dict[str, list[Case]] = {}
        for row in vectors.document["tensors_of_model"]:
            rows.setdefault(row["type"], []).append(row)
        with GgufFile.open(ask.path) as file:
            for kind, mine in rows.items():
                try:
                    yield from of_type(file, kind, mine, vectors, ask, verdict)
                except NoAnswer as error:
                    if error.status != "not-compared":
                        raise
                    yield verdict("not-compared", f"{kind}: {error.summary}")


def row_of(info: TensorInfo, digest: str) -> Case:
    return {"name": info.name, "type": info.type.name, "ne": list(info.ne), "sha256": digest}


def sha256_of(file: GgufFile, info: TensorInfo, ask: AskedEngine) -> str:
    digest = hashlib.sha256()
    raw, step = file.raw(info.name), CHUNK // info.type.block * info.type.bytes
    for start in range(0, len(raw), step):
        values = ask("dequantize", info.type.name, raw[start : start + step])
        digest.update(with_one_nan(values).astype("<f4").tobytes())
    return digest.hexdigest()


def pieces_of(
    file: GgufFile, source: Source, kinds: set[str]
) -> tuple[list[Case], list[NDArray[np.float32]]]:
    """Return whole blocks from random places in the tensors of each type, with their places."""
    rows: list[Case] = []
    values: list[F32] = []
    for name in sorted(kinds):
        kind = type_by_name(name)
        every = [t for t in file.tensors.values() if t.type.name == name and t.n_elements]
        most = max(LONGEST // kind.block, 1)
        for info, draw in draw_tensors(every, source.seed, name):
            n_blocks = info.n_bytes // kind.bytes
            first = draw % max(n_blocks - most + 1, 1)
            n = min(most, n_blocks - first)
            raw = file.raw(info.name)[first * kind.bytes : (first + n) * kind.bytes]
            values.append(with_one_nan(source.ask("dequantize", name, raw)))
            row = {"tensor": info.name, "type": name, "first": first * kind.block}
            row |= {"file_offset": file.data_offset + info.offset + first * kind.bytes}
            row |= {"bytes": n * kind.bytes, "weights": n * kind.block}
            rows.append({**row, "at": sum(r["weights"] for r in rows)})
    return rows, values


def draw_tensors(
    every: Sequence[TensorInfo], seed: int, name: str
) -> Iterator[tuple[TensorInfo, int]]:
    """Yield a tensor of a type for each piece, in order, with a random number; a tensor may occur
    several times."""
    bits_of_type = stream(seed, f"golden.weights {name}")
    which = np.sort(integers(bits_of_type, PIECES, max(len(every), 1)))
    places = bits_of_type.random_raw(PIECES) >> 1
    for i, draw in zip(which, places, strict=True):
        if every:
            yield every[int(i)], int(draw)


def of_type(
    file: GgufFile,
    kind: str,
    rows: list[Case],
    vectors: Vectors,
    ask: AskedEngine,
    verdict: Verdicts,
) -> Iterator[Verdict]:
    right = []
    for row in rows:
        info = file.tensors.get(row["name"])
        if info is None or (info.type.name, list(info.ne)) != (kind, row["ne"]):
            text = f"{row['name']}: the file has no such tensor of type {kind} and ne {row['ne']}"
            yield verdict("diverged", text, key=f"missing/{kind}")
        elif sha256_of(file, info, ask) != row["sha256"]:
            shown = where(info, file, vectors, ask)
            text = f"{row['name']} ({kind}): its weights have another hash{shown}"
            yield verdict("diverged", text, {"tensor": row["name"]}, key=f"value/{kind}")
        else:
            right.append(row)
    if right:
        n = sum(int(np.prod(row["ne"])) for row in right)
        text = f"{kind}: {n:,} weights of {len(right)} tensors have the same hashes"
        yield verdict("agreed", text, {"bit_exact": True})


def where(info: TensorInfo, file: GgufFile, vectors: Vectors, ask: AskedEngine) -> str:
    """Describe the first wrong weight, if the stored pieces contain it."""
    for row in vectors.document["pieces"]:
        if row["tensor"] != info.name:
            continue
        start = row["first"] // info.type.block * info.type.bytes
        raw = file.raw(info.name)[start : start + row["bytes"]]
        got = with_one_nan(ask("dequantize", info.type.name, raw))
        want = vectors.tensors["values"][row["at"] : row["at"] + row["weights"]]
        if got.shape == want.shape and np.array_equal(bits(got), bits(want)):
            continue
        off = mismatch_between(want, got, 0.0)
        if off is not None and off.kind == "value":
            at = row["first"] + off.index[0]
            return f"; weight {at} is {off.actual:.9g}, expected {off.expected:.9g}"
        return f"; weights from {row['first']} on differ"
    return ", but the stored pieces agree"
