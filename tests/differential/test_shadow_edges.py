"""Single ops at their edges: what ggml makes of them is what we say that it means.

Odd lengths, single and empty rows, ties, NaN and infinity, large and tiny values, masked rows.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from lockstep.engine.ops.build import Build
from lockstep.harness.check.check import lanes_of
from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.records import EXACT, Answered, Unanswerable
from lockstep.harness.shadow.judge import ShadowJudge
from lockstep.harness.synth.gguf_writer import write_gguf
from tests.shadow_nodes import node, normal, params

INF, NAN = np.inf, np.nan
LENGTHS = (1, 2, 3, 15, 16, 17, 31, 33, 64, 65, 127)
LARGE = np.array(
    [1e30, -1e30, 3e38, 1e-38, -1e-38, 1e-45, 0.0, -0.0, 1.0, 88.8, -103.9], np.float32
)
ODD = np.array([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0], np.float32)
UNARY = (
    *(
        "ABS",
        "SGN",
        "NEG",
        "STEP",
        "RELU",
        "SQR",
        "SQRT",
        "ROUND",
        "FLOOR",
        "CEIL",
        "TRUNC",
        "TANH",
    ),
    *("EXP", "SIGMOID", "SILU", "SOFTPLUS", "GELU", "GELU_ERF", "GELU_QUICK"),
)
BINARY = ("ADD", "SUB", "MUL", "DIV")
GATED = ("REGLU", "GEGLU", "SWIGLU", "GEGLU_ERF", "GEGLU_QUICK")
TOO_LARGE = {"GELU_QUICK": 60000.0}  # halves end there, and the table with them


@pytest.fixture(scope="module")
def ggml() -> Iterator[Session]:
    with Runner().open("llama.cpp", None, EXACT) as session:
        yield session


@pytest.fixture(scope="module")
def judge_of(ggml: Session, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from lockstep.engine.gguf.file import GgufFile

    path = tmp_path_factory.mktemp("edges") / "none.gguf"
    write_gguf(path, {"general.architecture": ("STR", "llama")}, [])
    info = ggml.ask("describe")
    assert isinstance(info, Answered)
    lanes = lanes_of(info.value.build)
    return lambda n_threads=1: ShadowJudge(
        GgufFile.open(path), Build(lanes=lanes, n_threads=n_threads)
    )


def check(
    ggml: Session, judge_of: Any, op: str, shape: Any, *sources: Any, held: Any = None
) -> Any:
    """ggml's result, after the judge has agreed with it."""
    asked = node(op, np.zeros(shape, np.float32), *sources, held=held)
    outcome = ggml.ask("compute", asked)
    assert isinstance(outcome, Answered), outcome
    judge = judge_of()
    judge(replace(asked, value=outcome.value))
    assert [f.mismatch for f in judge.findings] == []
    ((_, tally),) = judge.by_op()
    assert tally.compared == 1, tally.not_compared
    return outcome.value


@pytest.mark.parametrize("op", UNARY)
def test_a_function_at_its_edges(op: str, ggml: Session, judge_of: Any) -> None:
    for x in (*(normal(n, 2, n) * 4 for n in LENGTHS), LARGE, ODD, np.float32([[]])):
        if op in TOO_LARGE:
            x = x[np.abs(x) < TOO_LARGE[op]]
        check(ggml, judge_of, op, x.shape, x.astype(np.float32))


@pytest.mark.parametrize("op", BINARY)
def test_arithmetic_at_its_edges(op: str, ggml: Session, judge_of: Any) -> None:
    every = np.array(np.meshgrid(np.r_[ODD, LARGE], np.r_[ODD, LARGE]), np.float32)
    check(ggml, judge_of, op, every[0].shape, every[0], every[1])
    for n in LENGTHS:
        x, row = normal(n, 3, 4, n), normal(n + 1, 1, n)
        check(ggml, judge_of, op, x.shape, x, row)


def test_a_clamp_takes_nan_for_the_upper_limit(ggml: Session, judge_of: Any) -> None:
    x = np.r_[ODD, normal(1, 40) * 3].astype(np.float32)
    found = check(ggml, judge_of, "CLAMP", x.shape, x, held=params(-0.5, 2.0))
    assert found.reshape(-1)[0] == 2.0


@pytest.mark.parametrize("op", GATED)
def test_gates_at_their_edges(op: str, ggml: Session, judge_of: Any) -> None:
    for n in LENGTHS:
        x, y = normal(n, 3, n) * 5, normal(n + 1, 3, n)
        check(ggml, judge_of, op, x.shape, x, y)
        both = np.concatenate([x, y], axis=-1)
        for swapped in (0, 1):
            check(ggml, judge_of, op, x.shape, both, held=params(0, swapped))


@pytest.mark.parametrize("op", ["RMS_NORM", "NORM", "L2_NORM"])
def test_norms_of_any_length_and_size(op: str, ggml: Session, judge_of: Any) -> None:
    for n in LENGTHS:
        # one value less its mean is nothing, and how it was rounded is all that a NORM can show
        sizes = (1e-12, 1.0) if (op, n) == ("NORM", 1) else (1e-12, 1.0, 1e12)
        for size in sizes:
            x = normal(n, 3, n) * np.float32(size) + np.float32(size)
            check(ggml, judge_of, op, x.shape, x, held=params(1e-6))
    zeros = np.zeros((2, 8), np.float32)
    check(ggml, judge_of, op, zeros.shape, zeros, held=params(1e-6))


def test_a_norm_of_one_large_value_is_said_to_show_nothing(ggml: Session, judge_of: Any) -> None:
    with pytest.raises(AssertionError, match="every element is without a finite bound"):
        check(ggml, judge_of, "NORM", (1, 1), np.full((1, 1), 1e12, np.float32), held=params(1e-6))


@pytest.mark.parametrize("bias", [0.0, 8.0])
def test_softmax_with_masks_and_slopes(bias: float, ggml: Session, judge_of: Any) -> None:
    for n in LENGTHS:
        x = normal(n, 3, 4, n) * 9  # (heads, rows, columns)
        mask = np.where(normal(n + 1, 4, n) > 0, 0.0, -INF).astype(np.float32)
        mask[:, 0] = 0.0
        check(ggml, judge_of, "SOFT_MAX", x.shape, x, mask, held=params(0.3, bias))
        halves = mask.astype(np.float16)
        check(ggml, judge_of, "SOFT_MAX", x.shape, x, halves, held=params(0.3, bias))


def test_softmax_with_a_sink(ggml: Session, judge_of: Any) -> None:
    x, sinks = normal(1, 3, 4, 20), np.array([0.5, -3.0, 40.0], np.float32)
    found = check(ggml, judge_of, "SOFT_MAX", x.shape, x, None, sinks, held=params(1.0, 0.0))
    assert (found.sum(-1) < 1).all()


def test_products_of_any_length(ggml: Session, judge_of: Any) -> None:
    for n in LENGTHS:
        for rows, tokens in ((1, 1), (5, 3), (17, 9)):
            a, b = normal(n, rows, n), normal(n + 1, tokens, n)
            for weights in (a, a.astype(np.float16)):
                check(ggml, judge_of, "MUL_MAT", (tokens, rows), weights, b)


def test_a_product_repeats_its_first_factor(ggml: Session, judge_of: Any) -> None:
    a, b = normal(1, 2, 5, 33), normal(2, 3, 6, 7, 33)
    check(ggml, judge_of, "MUL_MAT", (3, 6, 7, 5), np.stack([a]), b)


@pytest.mark.parametrize("mode", [0, 2])
@pytest.mark.parametrize("op", ["ROPE", "ROPE_BACK"])
def test_rotations_in_part_and_stretched(op: str, mode: int, ggml: Session, judge_of: Any) -> None:
    at = np.array([0, 1, 77, 4095, 100_000], np.int32)
    x = normal(1, 5, 3, 40)  # (tokens, heads, dim)
    factors = np.linspace(1, 8, 16, dtype=np.float32)
    for ext, scale in ((0.0, 1.0), (1.0, 0.25)):
        held = params(0, 32, mode, 0, 4096, 1e4, scale, ext, 1.0, 32.0, 1.0)
        check(ggml, judge_of, op, x.shape, x, at, held=held)
        check(ggml, judge_of, op, x.shape, x, at, factors, held=held)


def attention(tokens: int, cells: int, dims: tuple[int, int], kind: Any, seed: int) -> list[Any]:
    """q, k, v and a mask that hides the cells after a token's own, and all of the first row."""
    q = normal(seed, 4, tokens, dims[0])
    k, v = (normal(seed + i, 2, cells, dim).astype(kind) for i, dim in enumerate(dims, 1))
    seen = np.arange(cells)[None, :] <= np.arange(tokens)[:, None] + cells - tokens
    mask = np.where(seen, 0.0, -INF).astype(np.float16)
    mask[0] = -INF if tokens > 1 else mask[0]
    return [q, k, v, mask]


@pytest.mark.parametrize("kind", [np.float16, np.float32])
@pytest.mark.parametrize(("bias", "cap"), [(0.0, 0.0), (8.0, 0.0), (0.0, 5.0)])
@pytest.mark.parametrize("dims", [(16, 16), (24, 16)])
def test_flash_attention_in_all_its_forms(
    dims: tuple[int, int], bias: float, cap: float, kind: Any, ggml: Session, judge_of: Any
) -> None:
    held = params(0.3, bias, cap)
    for tokens, cells in ((1, 1), (3, 33), (1, 640), (70, 130)):  # the last one in tiles
        sources = attention(tokens, cells, dims, kind, tokens + cells)
        shape = (tokens, 4, dims[1])
        check(ggml, judge_of, "FLASH_ATTN_EXT", shape, *sources, held=held)
        sinks = np.array([-2.0, 0.0, 1.0, 30.0], np.float32)
        check(ggml, judge_of, "FLASH_ATTN_EXT", shape, *sources, sinks, held=held)


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_flash_attention_with_sinks_in_pieces(kind: Any, judge_of: Any) -> None:
    """From 512 cells on each thread takes a piece; a sink of the first is its maximum, or not."""
    held = params(0.3, 0.0, 0.0)
    with Runner().open("llama.cpp", None, replace(EXACT, n_threads=2)) as ggml:
        for cells in (512, 640):
            for sinks in ([-40.0, -2.0, 0.0, 1.0], [5.0, 12.0, 30.0, 90.0]):
                sources = [*attention(1, cells, (16, 16), kind, cells), np.float32(sinks)]
                shape = (1, 4, 16)
                check(ggml, partial(judge_of, 2), "FLASH_ATTN_EXT", shape, *sources, held=held)


@pytest.mark.parametrize("order", [0, 1])
def test_ties_are_sorted_somehow(order: int, ggml: Session, judge_of: Any) -> None:
    x = np.round(normal(1, 7, 33))
    asked = node("ARGSORT", np.zeros(x.shape, np.int32), x, held=params(order))
    outcome = ggml.ask("compute", asked)
    assert isinstance(outcome, Answered)
    judge = judge_of()
    judge(replace(asked, value=outcome.value))
    assert judge.findings == []


def test_the_check_sees_a_changed_result(ggml: Session, judge_of: Any) -> None:
    x = normal(1, 3, 17)
    asked = node("SILU", np.zeros(x.shape, np.float32), x)
    outcome = ggml.ask("compute", asked)
    assert isinstance(outcome, Answered)
    judge = judge_of()
    judge(replace(asked, value=outcome.value * np.float32(1.00001)))
    assert len(judge.findings) == 1


def test_an_op_that_ggml_lacks_is_not_answered(ggml: Session) -> None:
    outcome = ggml.ask("compute", node("NO_SUCH_OP", np.zeros(3, np.float32)))
    assert isinstance(outcome, Unanswerable)
    assert "'NO_SUCH_OP'" in outcome.message
