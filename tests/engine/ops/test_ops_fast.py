"""The compiled ops compared with the mirror, within the derived bounds, for any shape."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.engine.kernels.compiled import is_kept
from lockstep.engine.ops import attention
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.fast import kernels as fast_kernels
from lockstep.engine.ops.fast.ops import Fast
from lockstep.engine.ops.reference import ReferenceOps, RopeParams
from lockstep.harness.adapters import adapter_class
from lockstep.harness.judging.compare import mismatch_between
from lockstep.harness.judging.noise import BoundedOps, carry_bound
from lockstep.harness.judging.tolerances import value_and_bound
from lockstep.harness.records import EXACT, Mismatch
from lockstep.harness.synth.llama import LlamaRecipe, write_llama
from tests.engine.ops.test_ops_reference import floats, weight_of

FAST = Fast(n_threads=2)
some = settings(max_examples=30, derandomize=True, deadline=None)
seeds = st.integers(0, 2**32 - 1)
sizes = st.sampled_from([1e-30, 1e-3, 1.0, 100.0])


def mismatch(op: str, *args: Any, ops: ReferenceOps = FAST) -> Mismatch | None:
    """Compare the op with mirror's, within the bound for a scalar engine."""
    truth = carry_bound(getattr(BoundedOps(), op)(*args))
    return mismatch_between(truth, getattr(ops, op)(*args), truth.bound.allowed)


@given(tokens=st.integers(0, 4), width=st.integers(1, 70), seed=seeds, size=sizes)
@some
def test_rms_norm_and_swiglu_are_within_bound(
    tokens: int, width: int, seed: int, size: float
) -> None:
    x, y = floats(seed, tokens, width, size=size), floats(seed + 1, tokens, width)
    assert mismatch("rms_norm", x, floats(seed + 2, width), 1e-5) is None
    assert mismatch("swiglu", x, y) is None
    # tensors of experts have one more axis
    assert mismatch("swiglu", x[:, None], y[:, None]) is None


@given(tokens=st.integers(0, 4), heads=st.integers(1, 3), pairs=st.integers(1, 20), seed=seeds)
@some
def test_rope_is_within_bound(tokens: int, heads: int, pairs: int, seed: int) -> None:
    factors = 1 + abs(floats(seed, pairs))
    positions = (abs(floats(seed + 1, tokens)) * 1000).astype(np.int32)
    x = floats(seed + 2, tokens, heads, 2 * pairs)
    for params in (
        RopeParams(2 * pairs, 10000.0, 0.5, None),
        RopeParams(2 * pairs, 1e6, 1.0, factors),
        RopeParams(2 * pairs, 1e6, 1.0, factors, halves=True),
        RopeParams(2 * max(1, pairs // 2), 1e4, 1.0, None, halves=True),
    ):
        assert mismatch("rope", x, positions, params) is None


@pytest.mark.parametrize("kind", [np.float32, np.float16])
@given(
    tokens=st.integers(0, 4), kv_heads=st.integers(1, 2), group=st.sampled_from([1, 2, 4]),
    cells=st.integers(1, 20), dim=st.integers(1, 40), seed=seeds,
)  # fmt: skip
@some
def test_attention_is_within_bound(
    kind: type[Any], tokens: int, kv_heads: int, group: int, cells: int, dim: int, seed: int
) -> None:
    q = floats(seed, tokens, kv_heads * group, dim)
    k, v = (floats(seed + i, cells, kv_heads, dim).astype(kind) for i in (1, 2))
    visible = floats(seed + 3, tokens, cells) > -0.5
    assert mismatch("kq", q, k) is None
    scores = FAST.kq(q, k)
    assert mismatch("soft_max", scores, 0.3, visible) is None
    assert mismatch("kqv", FAST.soft_max(scores, 0.3, visible), v) is None
    out = FAST.flash_attn(q, k, v, 0.3, visible)
    spread, build = FAST.spread, Build(lanes=1, plain=True)
    truth, bound = value_and_bound(
        attention.flash_attn, q, k, v, 0.3, visible, 0.0, None, spread, build=build
    )
    assert mismatch_between(truth, out, bound.allowed) is None


def test_row_without_visible_cells_is_zeros_and_experts_have_no_mask() -> None:
    visible = np.array([[0, 0, 0], [1, 0, 1]], bool)
    out = FAST.soft_max(floats(7, 4, 2, 3), 1.0, visible)
    assert not out[:, 0].any()
    assert not out[:, 1, 1].any()
    assert mismatch("soft_max", floats(8, 5, 6), 1.0, None) is None


def test_mask_off_by_one_cell_is_out_of_bound() -> None:
    x = floats(9, 2, 4, 6)
    truth = carry_bound(BoundedOps().soft_max(x, 0.3, np.tri(4, 6, 2, dtype=bool)))
    wrong = FAST.soft_max(x, 0.3, np.tri(4, 6, 1, dtype=bool))
    assert mismatch_between(truth, wrong, truth.bound.allowed) is not None


READ_ONLY: dict[str, Callable[[ReferenceOps, Any], Any]] = {
    "linear": lambda ops, x: ops.linear(x, weight_of("F32", (9, 8))),
    "rms_norm": lambda ops, x: ops.rms_norm(x, x[0], 1e-5),
    "swiglu": lambda ops, x: ops.swiglu(x, x),
}


@pytest.mark.parametrize("ask", READ_ONLY.values(), ids=READ_ONLY.keys())
def test_read_only_and_transposed_inputs_give_the_same_result(
    ask: Callable[[ReferenceOps, Any], Any],
) -> None:
    x = floats(10, 8, 8)
    expected = ask(FAST, x)
    turned = np.asfortranarray(x)
    turned.flags.writeable = False
    assert ask(FAST, turned).tobytes() == expected.tobytes()


# --- use in models --------------------------------------------------------------------------------


def test_fast_engine_generates_the_text_of_the_reference(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_llama(LlamaRecipe(quant="Q8_0", n_expert=4, n_expert_used=2), path)
    answers = [
        adapter_class(name)(path, EXACT).greedy([1, 7, 9], 8) for name in ("fast", "reference")
    ]
    assert answers[0] == answers[1]


def test_stored_kernel_is_found_at_any_age_unless_its_source_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FAST.rms_norm(floats(1, 2, 8), floats(2, 8), 1e-5)
    kept = fast_kernels.rms_norm._cache._cache_file
    assert is_kept(fast_kernels.rms_norm)
    moved = tmp_path / "index.nbi"
    moved.write_bytes(Path(kept._index_path).read_bytes())
    monkeypatch.setattr(kept, "_index_path", str(moved))
    os.utime(moved, (0, 0))
    assert is_kept(fast_kernels.rms_norm)
    monkeypatch.setattr(kept, "_source_stamp", "of another source")
    assert not is_kept(fast_kernels.rms_norm)
    moved.unlink()
    assert not is_kept(fast_kernels.rms_norm)
