"""Vectors of weights: complete, varied, and accurate enough to find wrong engines."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.activations.base import VARIANTS
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.near import F64
from lockstep.engine.ops.products import activation_format
from lockstep.engine.ops.reference import ReferenceOps as PlainOps
from lockstep.engine.quants.base import F32, WeightFormat
from lockstep.engine.quants.codebooks import codebook
from lockstep.engine.registry import import_members
from lockstep.engine.weights import Weight
from lockstep.golden.load import load_vectors
from lockstep.golden.manifest import read_manifest
from lockstep.golden.store import DEFAULT_ROOT
from lockstep.golden.suites.base import AskedEngine, Golden, Vectors, Verdicts
from lockstep.golden.suites.dot import TOKENS, types_with_products
from lockstep.harness.adapters.ieee754 import NUMBERS
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.context.runner import LocalSession
from lockstep.harness.records import EXACT, Verdict
from tests.wrong_formats import mistaken

import_members("lockstep.engine.quants")
import_members("lockstep.golden.suites")
FORMATS = sorted(WeightFormat.family.values(), key=lambda kind: kind.type_id)
ENTRIES = {entry.path: entry for entry in read_manifest(DEFAULT_ROOT)}
WITH_PRODUCTS = types_with_products()
MOST = 6 << 20  # bytes of all vectors of weights together
PER_FORMAT = pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
PER_PRODUCT = pytest.mark.parametrize("name", WITH_PRODUCTS)


def vectors_of(path: str) -> Vectors:
    return load_vectors(DEFAULT_ROOT, ENTRIES[f"{path}.json"], ENTRIES)


def held(engine: type[Reference], path: str) -> Verdict:
    verdict = Verdicts(suite="golden", case=path, repro="again")
    with LocalSession(engine, None, EXACT) as session:
        ask = AskedEngine(engine=engine.name, session=session)
        golden = Golden.member(path.split("/")[0])()
        (found,) = golden.replay(vectors_of(path), ask, verdict)
    return found


def engine(**methods: Callable[..., Any]) -> type[Reference]:
    return type("Engine", (Reference,), {"name": "engine", **methods})


# --- list of documents ----------------------------------------------------------------------


def test_every_type_has_weight_vectors_and_product_vectors_if_any() -> None:
    of = {path.removesuffix(".json") for path in ENTRIES if path.endswith(".json")}
    assert {p for p in of if p.startswith("dequant/")} == {
        f"dequant/{kind.name.lower()}" for kind in FORMATS
    }
    assert {p for p in of if p.startswith("dot/")} == {f"dot/{n.lower()}" for n in WITH_PRODUCTS}
    assert len(FORMATS) == 33
    assert len(WITH_PRODUCTS) == 28


def test_the_vectors_of_weights_are_small() -> None:
    sizes = [e.bytes for path, e in ENTRIES.items() if path.startswith(("dequant/", "dot/"))]
    assert sum(sizes) < MOST


@PER_FORMAT
def test_type_has_64_blocks_or_more_with_few_duplicates(kind: type[WeightFormat]) -> None:
    blocks = [row["hex"] for row in vectors_of(f"dequant/{kind.name.lower()}").document["blocks"]]
    assert len(blocks) >= 64
    assert len(set(blocks)) > 0.9 * len(blocks)


@PER_FORMAT
def test_llama_cpp_is_the_oracle_for_types_that_it_decodes(kind: type[WeightFormat]) -> None:
    document = vectors_of(f"dequant/{kind.name.lower()}").document
    expected = "ieee754" if kind.name in NUMBERS else "llama.cpp"
    assert document["provenance"]["oracle"]["engine"] == expected


@PER_FORMAT
def test_values_include_both_zeros_nan_and_infinity_if_possible(
    kind: type[WeightFormat],
) -> None:
    values = vectors_of(f"dequant/{kind.name.lower()}").tensors["expected"]
    assert (values == 0).any()
    assert (values > 0).any()
    assert (values < 0).any()
    integers = kind.name in NUMBERS and kind.name != "F64"
    own_scales = kind.name in ("MXFP4", "NVFP4")  # bytes: no NaN in ggml, and NVFP4's are small
    assert np.isnan(values).any() == (not integers and not own_scales)
    assert np.isinf(values).any() == (not integers and kind.name != "NVFP4")
    # MXFP4 has no scale of zero, and its codes have one zero only
    assert np.signbit(values[values == 0]).any() == (not integers and kind.name != "MXFP4")
    bits = values[np.isnan(values)].view(np.uint32)
    assert set(bits.tolist()) <= {0x7FC00000}  # the bits of a NaN carry no meaning


@pytest.mark.parametrize(
    ("name", "book", "length"),
    [
        ("IQ1_S", "iq1", 8),
        ("IQ1_M", "iq1", 8),
        ("IQ2_XXS", "iq2_xxs", 8),
        ("IQ2_XS", "iq2_xs", 8),
        ("IQ2_S", "iq2_s", 8),
        ("IQ3_XXS", "iq3_xxs", 4),
        ("IQ3_S", "iq3_s", 4),
        ("IQ4_NL", "iq4_nl", 1),
        ("IQ4_XS", "iq4_nl", 1),
    ],
)
def test_every_entry_of_a_code_book_occurs(name: str, book: str, length: int) -> None:
    """The vectors contain at least as many different runs of weights as the code book has
    entries."""
    vectors = vectors_of(f"dequant/{name.lower()}")
    rows = [row["id"].startswith(("book", "qs-from")) for row in vectors.document["blocks"]]
    runs = vectors.tensors["expected"][rows].reshape(-1, length)
    assert len(np.unique(runs, axis=0)) >= len(codebook(book))


# --- mistakes that dequant vectors catch ----------------------------------------------------


@pytest.mark.parametrize(("kind", "wrong"), mistaken(FORMATS))
def test_no_wrong_decoder_passes(kind: type[WeightFormat], wrong: type[WeightFormat]) -> None:
    def dequantize(self: Reference, type_name: str, raw: NDArray[np.uint8]) -> F32:
        n = raw.size // kind.layout.itemsize  # some wrong decoders need an even number of blocks
        more = np.concatenate([raw, raw[: n % 2 * kind.layout.itemsize]])
        return wrong.dequantize(more)[: n * kind.weights]

    verdict = held(engine(dequantize=dequantize), f"dequant/{kind.name.lower()}")
    assert verdict.status == "diverged"
    assert verdict.detail["block"] in verdict.summary


# --- mistakes that dot vectors catch or miss ------------------------------------------------


def with_activations(change: Callable[[F32, F64], F64]) -> type[Reference]:
    """Return an engine with changed activations. change: (activations, ggml's conversion) -> this
    engine's conversion."""

    class Ops(Mirror):
        def activations(self, x: F32, weight: Weight) -> F64:
            return change(x, super().activations(x, weight))

        def sums(self, x: F32, weight: Weight) -> F64 | None:
            return super().sums(x, weight)

    return engine(make_ops=lambda self: Ops())


@PER_PRODUCT
def test_oracle_is_well_inside_its_own_bound(name: str) -> None:
    tensors = vectors_of(f"dot/{name.lower()}").tensors
    share = np.abs(tensors["llama_cpp"] - tensors["expected"]) / tensors["allowed"]
    assert share.max() < 0.5


@PER_PRODUCT
def test_engine_with_unconverted_activations_is_recognised_and_passes(name: str) -> None:
    verdict = held(engine(make_ops=lambda self: PlainOps()), f"dot/{name.lower()}")
    assert verdict.status == "agreed"
    assert verdict.detail.get("converts", True) is (name == "F32")


@PER_PRODUCT
def test_float32_products_in_plain_order_pass(name: str) -> None:
    """Summing in plain order is the least accurate order, and common in new engines."""

    def multiply(self: Reference, type_name: str, raw: NDArray[np.uint8], x: F32) -> F32:
        kind = WeightFormat.member(type_name)
        weights = kind.dequantize(raw).reshape(-1, x.shape[-1])
        total = np.zeros((len(x), len(weights)), np.float32)
        for column in range(x.shape[-1]):
            total += x[:, column, None] * weights[None, :, column]
        return total

    verdict = held(engine(multiply=multiply), f"dot/{name.lower()}")
    assert verdict.status == "agreed"


@PER_PRODUCT
def test_a_result_off_by_one_part_in_100_000_does_not_pass(name: str) -> None:
    class Scaled(Mirror):
        def linear(self, x: F32, weight: Weight) -> F32:
            return super().linear(x, weight) * np.float32(1.00001)

    verdict = held(engine(make_ops=lambda self: Scaled()), f"dot/{name.lower()}")
    assert verdict.status == "diverged"
    assert any(word in verdict.summary for word in TOKENS)


@pytest.mark.parametrize("name", [n for n in WITH_PRODUCTS if n != "F32"])
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda x, acts: acts * (127 / 128), id="decoded-with-1/128"),
        pytest.param(lambda x, acts: np.roll(acts, 1, axis=-1), id="one-place-off"),
        pytest.param(
            lambda x, acts: np.where(acts == 0, x.astype(np.float64), acts), id="zeros-not-rounded"
        ),
        pytest.param(
            lambda x, acts: np.where(np.abs(acts) > np.abs(x), 2 * x - acts, acts), id="truncated"
        ),
    ],
)
def test_otherwise_converted_activations_do_not_pass(
    name: str, change: Callable[[F32, F64], F64]
) -> None:
    kind = WeightFormat.member(name)
    x = vectors_of(f"dot/{name.lower()}").tensors["activations"]
    acts = activation_format(kind).convert(x).values
    if np.array_equal(change(x, acts), acts):
        pytest.skip(f"to {kind.vec_dot_type} this is no other way: nothing was changed")
    assert held(with_activations(change), f"dot/{name.lower()}").status == "diverged"


@PER_PRODUCT
def test_all_known_builds_convert_activations_to_the_given_bytes(name: str) -> None:
    vectors = vectors_of(f"dot/{name.lower()}")
    target = activation_format(WeightFormat.member(name))
    x = vectors.tensors["activations"]
    for variant in VARIANTS:
        made = [target.quantise(row, variant).tobytes().hex() for row in x]
        assert made == vectors.document["converted"]


def test_contradictory_product_is_not_a_golden() -> None:
    good = vectors_of("dot/q4_k")
    golden = Golden.member("dot")()
    assert list(golden.inconsistencies(good)) == []
    for name in ("llama_cpp", "expected", "allowed", "plain_allowed"):
        changed = good.tensors[name].copy()
        changed[1, 2] = -changed[1, 2] if name.endswith("allowed") else changed[1, 2] + 1
        bad = Vectors(document=good.document, tensors={**good.tensors, name: changed})
        assert list(golden.inconsistencies(bad))
    short = json.loads(json.dumps(good.document)) | {"rows": 5}
    assert list(golden.inconsistencies(Vectors(document=short, tensors=good.tensors)))
