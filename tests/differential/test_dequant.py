"""Every decoder compared with llama.cpp's, bit for bit, on random blocks and each kind of scale."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator, Philox
from numpy.typing import NDArray

from lockstep.engine.quants.base import F32, NO_PRODUCT, Bytes, WeightFormat
from lockstep.engine.registry import import_members
from lockstep.harness.adapters.llama_cpp.activations import cpu_traits
from lockstep.harness.fuzzers.base import FuzzPlan, run_campaign
from tests.all_types import differences

import_members("lockstep.engine.quants")
FORMATS = sorted(WeightFormat.family.values(), key=lambda kind: kind.type_id)
# llama.cpp reads such tensors, but does not decode them
NO_DECODER = {"I8", "I16", "I32", "I64", "F64"}
DECODED = [kind for kind in FORMATS if kind.name not in NO_DECODER]
every_format = pytest.mark.parametrize("kind", DECODED, ids=lambda kind: kind.name)

# F16: zeros, subnormals and their neighbours, ones, the largest, infinities, NaN of both kinds
AWKWARD = [
    0x0000, 0x0001, 0x0002, 0x01FF, 0x0200, 0x03FF, 0x0400, 0x0401, 0x3BFF, 0x3C00, 0x3C01, 0x4248,
    0x7BFF, 0x7C00, 0x7C01, 0x7DFF, 0x7E00, 0x7FFF,
]  # fmt: skip
HALVES = np.array(AWKWARD + [0x8000 | bits for bits in AWKWARD], "<u2")


@cache
def library() -> Any:
    from lockstep.harness.adapters.llama_cpp.lib import library

    return library()


def decoded_by_ggml(kind: type[WeightFormat], raw: Bytes) -> F32:
    from lockstep.harness.adapters.llama_cpp.adapter import dequantize

    return dequantize(library(), kind.name, raw)


def random_blocks(kind: type[WeightFormat], n: int, seed: int = 11) -> NDArray[np.void]:
    raw = Generator(Philox(seed)).integers(0, 256, n * kind.layout.itemsize, np.uint8)
    return raw.view(kind.layout)


def with_scales(kind: type[WeightFormat], blocks: NDArray[np.void]) -> NDArray[np.void]:
    """Return the blocks with every pair of awkward half-precision scales, if the format has any.

    IQ1_M keeps the four quarters of its scale in the upper bits of four numbers.
    """
    pairs = np.stack(np.meshgrid(HALVES, HALVES), axis=-1).reshape(-1, 2)[: len(blocks)]
    names = [n for n in kind.layout.names or () if kind.layout[n] == np.dtype("<f2")]
    for i, name in enumerate(names):
        blocks[name] = pairs[:, i].view("<f2")
    if kind.name == "IQ1_M":
        for i in range(4):
            quarter = pairs[:, 0] >> 4 * i & 15
            blocks["scales"][:, i] = blocks["scales"][:, i] & 0x0FFF | quarter << 12
    return blocks


def bytes_of(blocks: NDArray[np.void]) -> Bytes:
    return np.ascontiguousarray(blocks).view(np.uint8).reshape(-1)


def assert_same(kind: type[WeightFormat], raw: Bytes) -> None:
    ours, theirs = kind.dequantize(raw), decoded_by_ggml(kind, raw)
    wrong = differences(ours, theirs)
    if wrong.size:
        at, size = int(wrong[0]), kind.layout.itemsize
        block = at // kind.weights
        pytest.fail(
            f"{kind.name}: {wrong.size} weights differ; number {at % kind.weights} of block "
            f"{raw[block * size : (block + 1) * size].tobytes().hex()} is {ours[at]!r}, "
            f"llama.cpp has {theirs[at]!r}"
        )


@every_format
def test_every_kind_of_scale_and_minimum_decodes_as_in_llama_cpp(kind: type[WeightFormat]) -> None:
    blocks = with_scales(kind, random_blocks(kind, HALVES.size**2))
    assert_same(kind, bytes_of(blocks))


@every_format
def test_each_byte_of_a_block_is_read_as_llama_cpp_reads_it(kind: type[WeightFormat]) -> None:
    """All 256 values of every byte, with the other bytes random."""
    size = kind.layout.itemsize
    blocks = random_blocks(kind, 256 * size, seed=12)
    raw = bytes_of(blocks).reshape(size, 256, size)
    for i in range(size):
        raw[i, :, i] = np.arange(256)
    assert_same(kind, raw.reshape(-1))


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_all_patterns_of_sixteen_bits_decode_as_in_llama_cpp(name: str) -> None:
    assert_same(WeightFormat.member(name), np.arange(65536, dtype="<u2").view(np.uint8))


@pytest.mark.parametrize("name", sorted(NO_DECODER))
def test_types_without_a_decoder_in_llama_cpp_are_listed(name: str) -> None:
    """`NO_DECODER` has these types because llama.cpp has no `to_float` for them."""
    kind = WeightFormat.member(name)
    traits = library().ggml.ggml_get_type_traits(kind.type_id).contents
    assert traits.type_name.decode().upper() == name
    assert (traits.block_weights, traits.block_bytes) == (1, kind.layout.itemsize)
    assert not traits.to_float


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_activations_are_converted_as_llama_cpp_does(
    kind: type[WeightFormat],
) -> None:
    traits = cpu_traits(library(), kind.type_id)
    assert bool(traits.vec_dot) is (kind.vec_dot_type != NO_PRODUCT)
    if traits.vec_dot:
        target = library().ggml.ggml_get_type_traits(traits.vec_dot_type).contents
        assert target.type_name.decode().upper() == kind.vec_dot_type


def test_llama_cpp_is_the_witness_between_reference_and_gguf_py(tmp_path: Path) -> None:
    plan = FuzzPlan(targets=("Q4_0",), engine="gguf-py", oracle="reference", cases=100)
    result = run_campaign("quants", plan, tmp_path, ["lockstep", "fuzz", "quants"])
    assert result.code == 0
    (agreed,) = (v for v in result.verdicts if v.status == "agreed")
    assert agreed.detail["witness"] == "llama.cpp"
