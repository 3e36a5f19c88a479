"""Flash attention as a single op, in all its forms, and the limits of other single ops of ggml.

The edge cases of every op are golden vectors, which golden/test_generate compares with llama.cpp.
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

INF = np.inf


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
    """Return ggml's result, after checking that the judge accepts it."""
    asked = node(op, np.zeros(shape, np.float32), *sources, held=held)
    outcome = ggml.ask("compute", asked)
    assert isinstance(outcome, Answered), outcome
    judge = judge_of()
    judge(replace(asked, value=outcome.value))
    assert [f.mismatch for f in judge.findings] == []
    ((_, tally),) = judge.by_op()
    assert tally.compared == 1, tally.not_compared
    return outcome.value


def test_norm_of_one_large_value_is_reported_as_vacuous(ggml: Session, judge_of: Any) -> None:
    with pytest.raises(AssertionError, match="every element is without a finite bound"):
        check(ggml, judge_of, "NORM", (1, 1), np.full((1, 1), 1e12, np.float32), held=params(1e-6))


def attention(tokens: int, cells: int, dims: tuple[int, int], kind: Any, seed: int) -> list[Any]:
    """Return q, k, v and a mask that hides the cells after each token, and the whole first row."""
    q = normal(seed, 4, tokens, dims[0])
    k, v = (normal(seed + i, 2, cells, dim).astype(kind) for i, dim in enumerate(dims, 1))
    seen = np.arange(cells)[None, :] <= np.arange(tokens)[:, None] + cells - tokens
    mask = np.where(seen, 0.0, -INF).astype(np.float16)
    mask[0] = -INF if tokens > 1 else mask[0]
    return [q, k, v, mask]


@pytest.mark.parametrize("kind", [np.float16, np.float32])
@pytest.mark.parametrize(("bias", "cap"), [(0.0, 0.0), (8.0, 0.0), (0.0, 5.0)])
@pytest.mark.parametrize("dims", [(16, 16), (24, 16)])
def test_flash_attention_agrees_in_all_its_forms(
    dims: tuple[int, int], bias: float, cap: float, kind: Any, ggml: Session, judge_of: Any
) -> None:
    held = params(0.3, bias, cap)
    # the last one is computed in tiles
    for tokens, cells in ((1, 1), (3, 33), (1, 640), (70, 130)):
        sources = attention(tokens, cells, dims, kind, tokens + cells)
        shape = (tokens, 4, dims[1])
        check(ggml, judge_of, "FLASH_ATTN_EXT", shape, *sources, held=held)
        sinks = np.array([-2.0, 0.0, 1.0, 30.0], np.float32)
        check(ggml, judge_of, "FLASH_ATTN_EXT", shape, *sources, sinks, held=held)


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_flash_attention_with_sinks_agrees_in_pieces(kind: Any, judge_of: Any) -> None:
    """Each thread computes a piece of a cache of 512 or more cells. A sink may or may not be the
    maximum of the first piece."""
    held = params(0.3, 0.0, 0.0)
    with Runner().open("llama.cpp", None, replace(EXACT, n_threads=2)) as ggml:
        for cells in (512, 640):
            for sinks in ([-40.0, -2.0, 0.0, 1.0], [5.0, 12.0, 30.0, 90.0]):
                sources = [*attention(1, cells, (16, 16), kind, cells), np.float32(sinks)]
                shape = (1, 4, 16)
                check(ggml, partial(judge_of, 2), "FLASH_ATTN_EXT", shape, *sources, held=held)


@pytest.mark.parametrize("order", [0, 1])
def test_tied_values_may_be_sorted_in_any_order(order: int, ggml: Session, judge_of: Any) -> None:
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


def test_op_that_ggml_lacks_gets_no_answer(ggml: Session) -> None:
    outcome = ggml.ask("compute", node("NO_SUCH_OP", np.zeros(3, np.float32)))
    assert isinstance(outcome, Unanswerable)
    assert "'NO_SUCH_OP'" in outcome.message
