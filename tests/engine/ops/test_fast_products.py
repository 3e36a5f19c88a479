"""The products of `fast` compared with mirror's, for every format and shape, on any processor."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.engine.activations.base import ActivationFormat
from lockstep.engine.kernels.integer_rows import BLOCKS
from lockstep.engine.kernels.stamped import SOURCES
from lockstep.engine.ops.fast import ops as fast
from lockstep.engine.ops.fast.activations import CONVERTED
from lockstep.engine.ops.fast.ops import Fast
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.reference import ReferenceOps
from lockstep.engine.quants.base import NO_PRODUCT, WeightFormat
from lockstep.engine.quants.q4_0 import Q4_0
from lockstep.engine.registry import import_members
from lockstep.engine.weights import Weight
from lockstep.harness.judging.compare import mismatch_between
from lockstep.harness.judging.noise import BoundedOps, carry_bound
from lockstep.harness.records import Mismatch
from tests.engine.ops.test_ops_reference import floats, weight_of

import_members("lockstep.engine.quants")
FORMATS = [name for name, kind in WeightFormat.family.items() if kind.vec_dot_type != NO_PRODUCT]
FLOATS = ("F32", "F16", "BF16")
FAST = Fast(n_threads=2)
some = settings(max_examples=30, derandomize=True, deadline=None)
seeds = st.integers(0, 2**32 - 1)
sizes = st.sampled_from([1e-30, 1e-3, 1.0, 100.0])


def mismatch(op: str, *args: Any, ops: ReferenceOps = FAST) -> Mismatch | None:
    """Compare the op with mirror's, within the bound for a scalar engine."""
    truth = carry_bound(getattr(BoundedOps(), op)(*args))
    return mismatch_between(truth, getattr(ops, op)(*args), truth.bound.allowed)


@pytest.mark.parametrize("type_name", FORMATS)
@given(
    tokens=st.sampled_from([0, 1, 2, 4, 9, 17]), outputs=st.integers(1, 21),
    blocks=st.integers(1, 4), seed=seeds, size=sizes,
)  # fmt: skip
@some
def test_linear_is_within_bound_for_any_shape(
    type_name: str, tokens: int, outputs: int, blocks: int, seed: int, size: float
) -> None:
    columns = block_of(type_name) * blocks
    weight = weight_of(type_name, (outputs, columns), seed)
    assert mismatch("linear", floats(seed, tokens, columns, size=size), weight) is None


def block_of(type_name: str) -> int:
    """Return the smallest number of columns that is in whole blocks of weights and of
    activations."""
    return max(32, WeightFormat.member(type_name).weights)


@pytest.mark.parametrize("type_name", FLOATS)
@pytest.mark.parametrize("inputs", [1, 7, 33])
def test_float_rows_need_no_whole_blocks(type_name: str, inputs: int) -> None:
    assert mismatch("linear", floats(1, 3, inputs), weight_of(type_name, (9, inputs))) is None


@pytest.mark.parametrize("type_name", FORMATS)
def test_linear_id_is_within_bound(type_name: str) -> None:
    ids = np.array([[0, 3], [2, 2], [3, 1]], np.int32)
    columns = 2 * block_of(type_name)
    stack = weight_of(type_name, (4, 11, columns))
    assert mismatch("linear_id", floats(2, 3, 1, columns), stack, ids) is None
    assert mismatch("linear_id", floats(2, 3, 2, columns), stack, ids) is None


class Plain(Fast):
    """An engine that forgets to convert activations."""

    def linear(self, x: Any, weight: Weight) -> Any:
        return ReferenceOps().linear(x, weight)


class SwapsNibbles(Fast):
    def linear(self, x: Any, weight: Weight) -> Any:
        blocks = weight.raw.view(Q4_0.layout).copy()
        blocks["qs"] = blocks["qs"] >> 4 | blocks["qs"] << 4
        return super().linear(x, Weight("w", Q4_0, weight.shape, blocks.view(np.uint8)))


@pytest.mark.parametrize(
    ("wrong", "type_name"),
    [*((Plain, name) for name in sorted({*FORMATS} - {"F32"})), (SwapsNibbles, "Q4_0")],
)
def test_wrong_product_is_out_of_bound(wrong: type[Fast], type_name: str) -> None:
    columns = 2 * block_of(type_name)
    for tokens in (2, 12):  # by rows, and by panels of rows
        args = floats(3, tokens, columns), weight_of(type_name, (9, columns))
        assert mismatch("linear", *args) is None
        assert mismatch("linear", *args, ops=wrong(1)) is not None


@pytest.mark.parametrize("type_name", ["F16", "BF16", "Q8_0", "Q4_0"])
def test_every_bit_pattern_of_weights_is_multiplied_as_mirror_does(
    type_name: str,
) -> None:
    """Each output has only one weight or block, so its sum has one term, which must match
    exactly."""
    kind = WeightFormat.member(type_name)
    codes = np.arange(65536, dtype=np.uint16)
    blocks = np.zeros(65536, kind.layout if kind.weights > 1 else Q4_0.layout)
    blocks["d"], blocks["qs"] = codes.view(np.float16), 1
    raw = (codes if kind.weights == 1 else blocks).view(np.uint8)
    weight = Weight("w", kind, (65536, kind.weights), raw.reshape(-1))
    x = np.zeros((1, kind.weights), np.float32)
    x[0, 0] = 127
    with np.errstate(all="ignore"):
        if kind.weights == 1:
            expected = 127 * weight.values()[:, 0].astype(np.float64)
        else:  # the sum of integers times the scale, as in ggml, where 0 * inf does not occur
            d = codes.view(np.float16).astype(np.float64)
            expected = d * 127 * (1 if type_name == "Q8_0" else -7)
        expected = expected.astype(np.float32)
    assert np.array_equal(FAST.linear(x, weight)[0], expected, equal_nan=True)


def test_wrong_decoder_is_not_replaced_by_a_kernel() -> None:
    class Unsigned(WeightFormat.member("Q8_0")):  # type: ignore[misc]
        @staticmethod
        def unpack(raw: Any, out: Any) -> None:
            blocks = raw.view(right.format.layout)
            steps = blocks["qs"].view(np.uint8).astype("f4")
            out[:] = (blocks["d"].astype("f4")[:, None] * steps).reshape(-1)

    right, x = weight_of("Q8_0", (5, 32)), floats(4, 2, 32)
    wrong = Weight("w", Unsigned, right.shape, right.raw)
    assert np.array_equal(FAST.linear(x, wrong), Mirror().linear(x, wrong))
    assert not np.allclose(FAST.linear(x, wrong), FAST.linear(x, right))


@pytest.mark.parametrize("type_name", FORMATS)
def test_weights_at_an_odd_address_are_read_correctly(type_name: str) -> None:
    columns = block_of(type_name)
    right, x = weight_of(type_name, (9, columns)), floats(5, 2, columns)
    shifted = np.empty(right.raw.size + 1, np.uint8)
    shifted[1:] = right.raw
    moved = Weight("w", right.format, right.shape, shifted[1:])
    assert FAST.linear(x, moved).tobytes() == FAST.linear(x, right).tobytes()


@pytest.mark.parametrize("type_name", FORMATS)
def test_threads_and_neighbours_change_no_bit(
    type_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five tokens are multiplied row by row from the file; more tokens are multiplied by panels."""
    columns = 3 * block_of(type_name)
    weight, x = weight_of(type_name, (37, columns)), floats(6, 21, columns)
    alone = np.concatenate([Fast(1).linear(row[None], weight) for row in x])
    monkeypatch.setattr(fast, "WORTH_A_THREAD", 1)
    assert Fast(5).linear(x[:5], weight).tobytes() == alone[:5].tobytes()
    assert Fast(5).linear(x, weight).tobytes() == alone.tobytes()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("type_name", sorted(BLOCKS))
def test_nan_and_infinity_give_equal_products_in_rows_and_panels(
    type_name: str, value: float
) -> None:
    """NaN and infinity become the step -128; a block with a NaN has the scale of its other values.

    `fast` once did not change the sign of these products, so Lockstep accused it in batches of few
    tokens.
    """
    columns = 2 * block_of(type_name)
    weight, x = weight_of(type_name, (37, columns), 3), floats(3, 12, columns)
    x[:, 5] = value
    many = FAST.linear(x, weight)
    assert FAST.linear(x[:2], weight).tobytes() == many[:2].tobytes()
    ops = Fast(1)
    ops.compute_together(few := x[:2].copy(), [weight, weight])
    assert ops.linear(few, weight).tobytes() == many[:2].tobytes()
    if np.isnan(value):
        assert mismatch("linear", x[:2], weight) is None
        assert mismatch("linear", x[:2], weight, ops=SignLeft(1)) is not None


class SignLeft(Fast):
    """An engine whose products are never positive, as if -(-128) were -128, as in a signed byte."""

    def linear(self, x: Any, weight: Weight) -> Any:
        return -np.abs(super().linear(x, weight))


@pytest.mark.parametrize("tokens", [1, 3, 12])
@pytest.mark.parametrize("names", [("Q4_K",) * 3, ("Q8_0", "Q8_0"), ("Q4_K", "Q6_K"), ("F32",) * 2])
def test_products_computed_together_are_the_same(names: tuple[str, ...], tokens: int) -> None:
    columns = max(map(block_of, names)) * 2
    weights = [weight_of(name, (5 + i, columns), i) for i, name in enumerate(names)]
    x, other = floats(8, tokens, columns), floats(9, tokens, columns)
    ops = Fast(n_threads=2)
    ops.compute_together(x, weights)
    for one in (x, other):  # results for other activations must not be returned
        for weight in weights:
            alone = FAST.linear(one.copy(), weight)
            assert np.ascontiguousarray(ops.linear(one, weight)).tobytes() == alone.tobytes()
    ops.compute_together(x, weights)
    assert ops.linear(other, weights[1]).tobytes() == FAST.linear(other, weights[1]).tobytes()


K_FORMATS = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
EXTREMES = (*K_FORMATS, "Q5_1", "Q8_0", "IQ4_NL", "IQ4_XS")


def largest(type_name: str, rows: int, columns: int) -> Weight:
    """Return rows in which all steps and group scales have their largest values."""
    kind = WeightFormat.member(type_name)
    blocks = np.zeros(rows * columns // kind.weights, kind.layout)
    blocks.view(np.uint8)[:] = 128 if type_name == "Q8_0" else 255  # -128 has no opposite
    for name in kind.layout.names or ():
        if kind.layout[name].kind == "f":
            blocks[name] = 1
    return Weight("w", kind, (rows, columns), blocks.view(np.uint8))


class OneLess(Fast):
    """A wrong engine whose largest step is one too small, as if a sum of four products had
    overflowed."""

    def linear(self, x: Any, weight: Weight) -> Any:
        blocks = weight.raw.view(weight.format.layout).copy()
        blocks["ql" if weight.format.name == "Q6_K" else "qs"] ^= 1
        raw = blocks.view(np.uint8)
        return super().linear(x, Weight("w", weight.format, weight.shape, raw))


@pytest.mark.parametrize("type_name", EXTREMES)
@pytest.mark.parametrize("sign", [1, -1])
def test_four_largest_products_fit_into_the_accumulator(type_name: str, sign: int) -> None:
    weight = largest(type_name, 3, 512)
    x = np.full((12, 512), np.float32(sign))
    x[0, 1::2] *= -1
    assert FAST.linear(x[:2], weight).tobytes() == FAST.linear(x, weight)[:2].tobytes()
    assert mismatch("linear", x[:2], weight) is None
    assert mismatch("linear", x[:2], weight, ops=OneLess(1)) is not None


def of_some_formats() -> dict[str, str]:
    """Return a digest of the results of some formats, which together use every instruction.
    Products are computed by rows, by panels, and by rows in float64."""
    found = {}
    for name in ("F32", *EXTREMES):
        columns = 2 * block_of(name)
        weight, x = weight_of(name, (11, columns)), floats(7, 12, columns)
        parts = [FAST.linear(rows, weight).tobytes() for rows in (x, x[:3])]
        if name in ("Q8_0", "Q4_K"):  # computed by the same kernels, and summed in float64
            parts.append(Mirror().linear(x[:3], weight).tobytes())
        if name in EXTREMES:
            parts.append(Mirror().linear(x[:3], weight).tobytes())
            extreme, ones = largest(name, 3, columns), np.ones((40, columns), np.float32)
            parts.append(FAST.linear(ones[:1], extreme).tobytes())
            for rows, matrix in ((floats(8, 40, columns), weight), (ones, extreme)):
                # for so many rows, integer products are used
                parts.append(Mirror().linear(rows, matrix).tobytes())
        found[name] = hashlib.sha256(b"".join(parts)).hexdigest()
    return found


# with only a name, numba compiles for all features of the machine, such as VNNI
PROCESSORS = {"haswell": "+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+popcnt,+sse4.2,+ssse3", "generic": ""}


@pytest.mark.parametrize("processor", PROCESSORS)
def test_other_processors_multiply_equally(processor: str) -> None:
    """Kernels compiled for a processor are stored under its name."""
    there = {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": PROCESSORS[processor]}
    code = "import json; from tests.engine.ops.test_fast_products import of_some_formats as f; "
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"{code}print(json.dumps(f()))"],
        cwd=Path(__file__).resolve().parents[3],
        env={**os.environ, **there},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert json.loads(done.stdout) == of_some_formats()


@pytest.mark.parametrize("type_name", sorted(CONVERTED))
@given(tokens=st.integers(0, 3), blocks=st.integers(1, 3), seed=seeds, size=sizes)
@some
def test_activations_are_converted_to_the_bytes_of_their_format(
    type_name: str, tokens: int, blocks: int, seed: int, size: float
) -> None:
    x = floats(seed, tokens, 256 * blocks, size=size)
    special = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1e-38, 3e38, -128, 127.5], np.float32)
    if seed % 2:
        at = np.random.default_rng(seed).integers(0, max(1, x.size), 5)
        x.reshape(-1)[at[: x.size]] = special[at[: x.size] % len(special)]
    with np.errstate(all="ignore"):
        expected = ActivationFormat.member(type_name).quantise(x)
    found = CONVERTED[type_name](x)
    assert np.array_equal(found.x.reshape(expected["qs"].shape), expected["qs"])
    assert np.array_equal(found.dx, expected["d"].astype(np.float32), equal_nan=True)
    group = 256 // 16 if type_name == "Q8_K" else 32
    sums = expected["qs"].reshape(*found.sums.shape, group).sum(axis=-1, dtype=np.int32)
    assert np.array_equal(found.sums, sums)
    if type_name == "Q8_1":
        assert np.array_equal(found.lows, expected["s"].astype(np.float32), equal_nan=True)


def test_kept_kernels_are_out_of_date_once_a_code_book_changes() -> None:
    books = {path.name for path in SOURCES if path.suffix == ".hex"}
    assert {"iq1.hex", "iq2_s.hex"} <= books
