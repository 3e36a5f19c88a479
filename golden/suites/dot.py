"""Vectors of products: weights, activations, the product in float64, its bound, and ggml's
product."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from lockstep.engine.activations.base import F64, VARIANTS
from lockstep.engine.ops.build import ANY_ENGINE, Build
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.products import (
    APART,
    activation_format,
    factors,
    offsets,
    run_of,
    summed_products,
)
from lockstep.engine.ops.sums import in_order
from lockstep.engine.quants.base import F32, NO_PRODUCT, WeightFormat
from lockstep.engine.registry import import_members
from lockstep.engine.weights import Weight
from lockstep.golden.store import BrokenGolden
from lockstep.golden.suites.base import (
    AskedEngine,
    Case,
    Golden,
    Source,
    Vectors,
    Verdicts,
    difference,
)
from lockstep.harness.judging.compare import mismatch_between
from lockstep.harness.judging.tolerances import Bound, limit_overflow
from lockstep.harness.records import Mismatch, Verdict
from lockstep.harness.synth.draws import stream, uniform
from lockstep.harness.synth.generator import tensor_bytes

ROWS, COLUMNS = 6, 512
# columns of float types, whose sums round at every term; the limit must reveal a conversion
FEW_COLUMNS = 32
TOKENS = ("even", "sizes", "outliers", "zeros")  # kinds of rows of activations
SIGMA = 0.25  # standard deviation of the weights
TRIES = 100
GGML = Build(lanes=1)  # one lane, as in ANY_ENGINE, because its limit holds for any other order
COMPARE = (
    "no element of a product further than `allowed` from `expected`; an engine that does not "
    "convert activations: no further than `plain_allowed` from `plain`; `llama_cpp` is what the "
    "oracle computed"
)


class GoldenDot(Golden, name="dot"):
    def make(self, source: Source, what: str) -> Vectors:
        source.progress(f"{what}: products")
        kind = WeightFormat.member(what)
        columns = FEW_COLUMNS if kind.weights == 1 else COLUMNS
        bits = stream(source.seed, f"golden.dot.{what}")
        raw = np.frombuffer(b"".join(tensor_bytes(bits, what, ROWS * columns, SIGMA)), np.uint8)
        weight = Weight("weights", kind, (ROWS, columns), raw)
        x = activations(kind, columns, source.seed)
        expected, bound = mirror_product(x, weight)
        plain, plain_bound = multiply_blocks(x.astype(np.float64), None, weight, blocks=False)
        reasons = {"reason": bound.reason, "plain_reason": plain_bound.reason}
        tensors = {
            "activations": x,
            "expected": expected,
            "allowed": rounded_up(bound),
            "plain": plain,
            "plain_allowed": rounded_up(plain_bound),
            "llama_cpp": source.ask("multiply", what, weight.raw, x),
        }
        head = source.head("dot", build=True)
        document = {**head, **facts(weight, x), **reasons, "compare": COMPARE}
        return Vectors(document=document, tensors=tensors)

    def inconsistencies(self, vectors: Vectors) -> Iterator[str]:
        document, tensors = vectors.document, vectors.tensors
        tokens, rows, columns = (document[name] for name in ("tokens", "rows", "columns"))
        shapes = {name: (tokens, rows) for name in ("expected", "allowed", "plain",
                                                    "plain_allowed", "llama_cpp")}  # fmt: skip
        shapes["activations"] = (tokens, columns)
        for name, shape in shapes.items():
            found = tensors[name].shape if name in tensors else None
            if found != shape:
                yield f"the tensor {name!r} has shape {found}, the document says {shape}"
                return
        if len(document["weights"]) != rows or len(document["converted"]) != tokens:
            yield "there is not one row of bytes for each row and token"
        for name in ("expected", "plain"):
            allowed = tensors["allowed" if name == "expected" else "plain_allowed"]
            if not (np.isfinite(tensors[name]).all() and (allowed > 0).all()):
                yield f"{name!r} must be finite, and its bound positive"
        wrong = mismatch_between(tensors["expected"], tensors["llama_cpp"], tensors["allowed"])
        if wrong is not None:
            yield f"the oracle's own product is out of bound at {list(wrong.index)}"

    def why_outdated(self, held: Vectors, made: Vectors) -> str:
        """Compare everything except the oracle's product, which may have any value within the
        bound."""
        wrong = mismatch_between(
            held.tensors["expected"], made.tensors["llama_cpp"], held.tensors["allowed"]
        )
        if wrong is not None:
            return f"the oracle's product is out of bound at {list(wrong.index)}"
        return difference(held, made, but=("llama_cpp",))

    def cases(self, vectors: Vectors) -> Mapping[str, Any]:
        document = vectors.document
        found: Case = {
            key: document[key]
            for key in ("provenance", "type", "vec_dot_type", "compare", "reason", "plain_reason")
        }
        for part in ("weights", "converted"):
            found |= {f"{part} {i}": row for i, row in enumerate(document[part])}
        return {**found, **vectors.tensors}

    def replay(self, vectors: Vectors, ask: AskedEngine, verdict: Verdicts) -> Iterator[Verdict]:
        document, tensors = vectors.document, vectors.tensors
        kind = document["type"]
        raw = np.frombuffer(bytes.fromhex("".join(document["weights"])), np.uint8)
        got: F32 = ask("multiply", kind, raw, tensors["activations"])
        wrong = mismatch_between(tensors["expected"], got, tensors["allowed"])
        if wrong is None:
            share = float((np.abs(got - tensors["expected"]) / tensors["allowed"]).max())
            text = f"{kind}: {got.size} products, worst error {share:.2f} of its limit"
            exact = got.tobytes() == tensors["llama_cpp"].tobytes()
            yield verdict("agreed", text, {"worst_share": share, "bit_exact": exact})
            return
        if mismatch_between(tensors["plain"], got, tensors["plain_allowed"]) is None:
            text = f"{kind}: {got.size} products of activations that were not converted"
            yield verdict("agreed", text, {"converts": False, "bit_exact": False})
            return
        yield divergence(kind, wrong, document["reason"], verdict)


def facts(weight: Weight, x: F32) -> Case:
    """Return the document's facts about weights and activations, with bytes as hex."""
    kind = weight.format
    converted = [activation_format(kind).quantise(row) for row in x]
    return {
        "type": kind.name,
        "vec_dot_type": kind.vec_dot_type,
        "tokens": len(x),
        "rows": weight.shape[0],
        "columns": weight.shape[1],
        "weights": [row.tobytes().hex() for row in weight.raw.reshape(weight.shape[0], -1)],
        "converted": [row.tobytes().hex() for row in converted],
    }


def divergence(kind: str, wrong: Mismatch, reason: str, verdict: Verdicts) -> Verdict:
    if wrong.kind != "value":
        return verdict("diverged", f"{kind}: {wrong.detail}", key=f"shape/{kind}")
    detail = {
        "index": list(wrong.index),
        "expected": wrong.expected,
        "actual": wrong.actual,
        "allowed": wrong.allowed,
        "mismatched": wrong.mismatched,
        "reason": reason,
    }
    token, row = wrong.index
    text = (
        f"{kind}: {wrong.mismatched} of {wrong.total} products are off; token {token} "
        f"({TOKENS[token % len(TOKENS)]}), row {row} is {wrong.actual:.9g}, expected "
        f"{wrong.expected:.9g} (allowed {wrong.allowed:.2g})"
    )
    return verdict("diverged", text, detail, key=f"value/{kind}")


def types_with_products() -> list[str]:
    """Return the types that have products, in the order of ggml's ids."""
    import_members("lockstep.engine.quants")
    formats = sorted(WeightFormat.family.values(), key=lambda kind: kind.type_id)
    return [kind.name for kind in formats if kind.vec_dot_type != NO_PRODUCT]


def activations(kind: type[WeightFormat], n: int, seed: int) -> F32:
    """Return activations, (tokens, columns), that every known build of ggml converts to the same
    bytes.

    Builds differ in the rounding of ties and in the last bit of a factor. Activations that builds
    convert differently are drawn again, so that a difference is always an error.
    """
    bits, target = stream(seed, f"golden.dot.{kind.name}.activations"), activation_format(kind)
    for _ in range(TRIES):
        x = uniform(bits, len(TOKENS) * n, 1.0).reshape(len(TOKENS), n)
        x[1] = np.ldexp(x[1], np.arange(n) * 16 // n - 12)
        x[2, 7::32] *= 100
        x[3, : n // 2] = 0
        x[3, n * 5 // 8 :: 3] = 0
        if len({target.quantise(x, variant).tobytes() for variant in VARIANTS}) == 1:
            return x
    raise BrokenGolden(f"no activations were found that all builds convert alike to {target.name}")


def mirror_product(x: F32, weight: Weight) -> tuple[F32, Bound]:
    """Multiply with ggml's roundings of the activations, and without other roundings."""
    mirror = Mirror()
    return multiply_blocks(
        mirror.activations(x, weight), mirror.sums(x, weight), weight, blocks=True
    )


def multiply_blocks(
    acts: F64, sums: F64 | None, weight: Weight, *, blocks: bool
) -> tuple[F32, Bound]:
    """Multiply weights and activations. blocks: steps of a block are multiplied as integers, so
    that only the sums over blocks are rounded."""
    out = np.zeros((len(acts), weight.shape[0]))
    size = np.zeros(out.shape)  # sum of the magnitudes of all terms
    for rows, pairs in factors(acts, sums, weight):
        for a, w in pairs:
            out[:, rows] += in_order(a, w.astype(np.float64).T)
        for a, w in (*pairs, *(offsets(acts, weight, rows, GGML) if blocks else ())):
            size[:, rows] += in_order(np.abs(a), np.abs(w.astype(np.float64)).T)
    size *= APART.get(weight.format.name, 1.0)
    out = out.astype(np.float32).astype(np.float64)
    run = run_of(weight.format) if blocks else 1
    return limit_overflow(summed_products(out, size, weight.shape[-1], ANY_ENGINE, run))


def rounded_up(bound: Bound) -> F32:
    allowed = np.asarray(bound.allowed, np.float64)
    return np.nextafter(allowed.astype(np.float32), np.float32(np.inf))
