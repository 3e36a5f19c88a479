"""Weight formats compared with gguf-py's tables and decoders, and their refusals."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator, Philox

from lockstep.engine.errors import MalformedFile, Unsupported
from lockstep.engine.gguf.types import TYPES
from lockstep.engine.quants.base import F32, Bytes, WeightFormat
from lockstep.engine.quants.q4_0 import Q4_0
from lockstep.engine.registry import import_members
from tests.all_types import same

import_members("lockstep.engine.quants")
FORMATS = sorted(WeightFormat.family.values(), key=lambda kind: kind.type_id)
PLAIN = ["I8", "I16", "I32", "I64", "F64", "F32"]  # types that numpy knows
ACTIVATIONS_ONLY = {"Q8_1", "Q8_K"}  # types that do not occur in files
every_format = pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)


def random_bytes(kind: type[WeightFormat], blocks: int, seed: int = 1) -> Bytes:
    return Generator(Philox(seed)).integers(0, 256, blocks * kind.layout.itemsize, np.uint8)


# --- tables ---------------------------------------------------------------------------------------


def test_every_type_of_the_file_format_is_registered() -> None:
    assert WeightFormat.family.keys() == {kind.name for kind in TYPES.values()} - ACTIVATIONS_ONLY


# --- decoders -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLAIN)
def test_plain_numbers_become_the_nearest_float32(name: str) -> None:
    kind = WeightFormat.member(name)
    raw = random_bytes(kind, 4001)
    ties = np.array([2**24 + 1, 2**24 + 3, -(2**24) - 1, 2**25 + 2]) if "4" in name else [1, -1]
    raw = np.concatenate([raw, np.array(ties).astype(kind.layout["x"]).view(np.uint8)])
    with np.errstate(over="ignore"):  # a double beyond float32 becomes infinite
        assert same(kind.dequantize(raw), raw.view(kind.layout["x"]).astype(np.float32))


@every_format
def test_block_decodes_to_equal_weights_at_any_place(kind: type[WeightFormat]) -> None:
    """The block lies alone, among other blocks, at an odd address, or in read-only memory."""
    raw = random_bytes(kind, 67)
    together = kind.dequantize(raw).reshape(67, kind.weights)
    odd = np.empty(raw.size + 1, np.uint8)[1:]
    odd[:] = raw
    odd.flags.writeable = False
    assert same(kind.dequantize(odd), together.reshape(-1))
    for i in (0, 1, 33, 66):
        alone = raw.reshape(67, -1)[i]
        assert same(kind.dequantize(alone), together[i])


@every_format
def test_decoder_writes_exactly_the_weights(
    kind: type[WeightFormat],
) -> None:
    raw, n = random_bytes(kind, 35), 35 * kind.weights
    around = np.full(n + 2, np.float32(-12345.678))
    kind.dequantize_into(raw, around[1:-1])
    assert around[0] == around[-1] == np.float32(-12345.678)
    assert not (around[1:-1] == np.float32(-12345.678)).any()
    assert raw.flags.writeable


def test_empty_input_gives_no_weights() -> None:
    for kind in FORMATS:
        assert kind.dequantize(np.empty(0, np.uint8)).shape == (0,)


# --- threads --------------------------------------------------------------------------------------


@every_format
def test_threads_that_decode_side_by_side_change_no_bit(kind: type[WeightFormat]) -> None:
    parts = [random_bytes(kind, 101 + i) for i in range(4)]
    alone = [kind.dequantize(part).tobytes() for part in parts]
    with ThreadPoolExecutor(2) as pool:
        assert [out.tobytes() for out in pool.map(kind.dequantize, parts)] == alone


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [k for k in FORMATS if k.layout.itemsize > 1], ids=lambda kind: kind.name
)
def test_a_partial_block_is_refused_with_its_place(kind: type[WeightFormat]) -> None:
    size = kind.layout.itemsize
    with pytest.raises(
        MalformedFile, match=f"{kind.name} needs whole {size}-byte blocks, got"
    ) as e:
        kind.dequantize(np.zeros(2 * size + 1, np.uint8))
    assert (e.value.kind, e.value.offset) == ("partial-block", 2 * size)


def read_only() -> F32:
    out = np.empty(64, np.float32)
    out.flags.writeable = False
    return out


@pytest.mark.parametrize(
    "out",
    [
        np.empty(63, np.float32),
        np.empty(65, np.float32),
        np.empty((2, 32), np.float32),
        np.empty(64, np.float64),
        np.empty(128, np.float32)[::2],
        np.empty(4 * 64 + 1, np.uint8)[1:].view(np.float32),
        read_only(),
    ],
    ids=["too short", "too long", "two rows", "doubles", "gaps", "odd address", "read-only"],
)
def test_unsuitable_output_array_is_refused(out: Any) -> None:
    with pytest.raises(ValueError, match=r"2 blocks of Q4_0 need a flat, .* array of 64, got "):
        Q4_0.dequantize_into(np.zeros(36, np.uint8), out)


def test_unknown_format_is_refused_with_the_known_formats() -> None:
    with pytest.raises(Unsupported, match=r"no weight format named 'Q9_9' \(near: "):
        WeightFormat.member("Q9_9")
