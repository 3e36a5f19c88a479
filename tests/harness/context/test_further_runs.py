"""Engines that are right for a prompt of 32 tokens and for single tokens, but wrong in longer
runs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.errors import EngineError, Unsupported
from lockstep.engine.memory.base import LayerView
from lockstep.engine.model import Model
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.reference import I32, RopeParams
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.check.check import run_suites
from lockstep.harness.context.further_runs import FEW, FILLED, batch_sizes, further_runs
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.records import Evaluation, Request, Verdict
from tests.contexts import context_of, statuses
from tests.models import written

Bools = NDArray[np.bool_]
N = 330  # number of cells in the models
LONG, JOINED = f"for {N} tokens in batches of", "with two sequences that come later"
EDGE = "for 3 tokens one by one after 255"
FIRST, MIDDLE, LAST = (f"with another {place} token" for place in ("first", "middle", "last"))
ALONE = "for the first token alone"
ASKED = (LONG, EDGE, JOINED, FIRST, MIDDLE, LAST, ALONE)


class RowsBehind64(Mirror):
    """An engine that repeats row 63 in place of all rows after two tiles of 32 rows."""

    def linear(self, x: F32, weight: Weight) -> F32:
        rows = np.minimum(np.arange(len(x)), 63)
        return super().linear(x[rows], weight)


def last_row_is_another(where: Callable[[int], bool]) -> type[Mirror]:
    """Return ops whose last row repeats the row before it, if `where` is True for the number of
    rows."""

    class Ops(Mirror):
        def linear(self, x: F32, weight: Weight) -> F32:
            found = super().linear(x, weight)
            if where(len(x)):
                found[-1] = found[-2]
            return found

    return Ops


FEW_ROWS = last_row_is_another(lambda n: 5 < n <= 8)  # a kernel for up to 8 rows drops the last row
# a kernel for four rows gives its fourth row again for the fifth
FOUR_AND_ONE = last_row_is_another(lambda n: n > 8 and n % 8 == 5)
# if rows fill whole tiles, nothing is left for the last row
WHOLE_TILES = last_row_is_another(lambda n: n > 0 and n % 64 == 0)


class PositionsInAByte(Mirror):
    def rope(self, x: F32, positions: I32, params: RopeParams) -> F32:
        return super().rope(x, positions % 256, params)


class LastIdIsUnknown(Mirror):
    def get_rows(self, weight: Weight, ids: I32) -> F32:
        return super().get_rows(weight, np.where(ids == weight.shape[0] - 1, 0, ids))


class Changed(LayerView):
    """A view that shows wrong cells."""

    def __init__(
        self, view: LayerView, batch: Batch, change: Callable[[Bools, Batch], Bools]
    ) -> None:
        self.view, self.batch, self.change = view, batch, change
        self.store, self.read = view.store, view.read  # type: ignore[method-assign]

    def visible(self, window: int) -> Bools:
        return self.change(self.view.visible(window).copy(), self.batch)


def seen_through(change: Callable[[Bools, Batch], Bools]) -> type[Model]:
    class Wrong(Model):
        def compute(
            self, ubatch: Batch, views: Mapping[int, LayerView], *args: Any, **options: Any
        ) -> F32:
            changed = {layer: Changed(view, ubatch, change) for layer, view in views.items()}
            return super().compute(ubatch, changed, *args, **options)

    return Wrong


class CellsForPositions(Model):
    """An engine that rotates a single token by the number of cells in use, over all sequences."""

    def compute(
        self, ubatch: Batch, views: Mapping[int, LayerView], *args: Any, **options: Any
    ) -> F32:
        if len(ubatch) == 1:
            n_cells = next(iter(views.values())).visible(0).shape[1]
            ubatch = replace(ubatch, positions=np.full_like(ubatch.positions, n_cells - 1))
        return super().compute(ubatch, views, *args, **options)


def no_more_than_256_cells(visible: Bools, _: Batch) -> Bools:
    visible[:, :-256] = False
    return visible


def causal_by_row(visible: Bools, batch: Batch) -> Bools:
    """Let a token see as many cells as its row number, in a batch of one sequence."""
    alone = len(batch) == 1 or batch.seq_ids.any() != batch.seq_ids.all()
    return visible if alone else visible & np.tri(*visible.shape, dtype=np.bool_)


def later_sequences_leak(visible: Bools, batch: Batch, first: int = 0) -> Bools:
    """Let each sequence after number `first` see all earlier cells."""
    own = visible | np.tri(*visible.shape, visible.shape[1] - len(batch), dtype=np.bool_)
    return np.where(batch.seq_ids[:, None] > first, own, visible)


def ids_of_one_bit(visible: Bools, batch: Batch) -> Bools:
    return later_sequences_leak(visible, batch, first=1)


def splits_of_128(visible: Bools, batch: Batch, n: int = 128) -> Bools:
    """Hide the last cell from a single token if a split of 128 cells holds only that cell."""
    if len(batch) == 1 and visible.shape[1] % n == 1 < visible.shape[1]:
        visible[:, -1] = False
    return visible


def splits_of_256(visible: Bools, batch: Batch) -> Bools:
    """Hide the last cell as `splits_of_128` does, for splits of 256 cells."""
    return splits_of_128(visible, batch, n=256)


class Wrong(Reference):
    """An engine with a wrong mask."""

    model_class: type[Model] = Model

    def make_model(self) -> Model:
        model = super().make_model()
        model.__class__ = self.model_class
        return model


class LastRowsOfLater(Reference, name="further: last rows"):
    """An engine that returns the last rows of batches on a filled cache, instead of the requested
    rows."""

    def evaluate(self, request: Request) -> Evaluation:
        every = [replace(b, outputs=np.ones(len(b), np.bool_)) for b in request.batches]
        first = request.batches[0].outputs
        every[0] = replace(every[0], outputs=first)
        found = super().evaluate(replace(request, batches=tuple(every)))
        asked = (int(b.outputs.sum()) for b in request.batches)
        rows = tuple(rows[len(rows) - n :] for rows, n in zip(found.logits, asked, strict=True))
        return replace(found, logits=rows)


class AloneOnAnEmptyCache(Reference, name="further: alone on an empty cache"):
    """An engine that is wrong for a prompt of one token, on an empty cache."""

    def evaluate(self, request: Request) -> Evaluation:
        found = super().evaluate(request)
        rows = (
            logits * np.float32(1.01) if len(b) == 1 and not b.positions[0] else logits
            for b, logits in zip(request.batches, found.logits, strict=True)
        )
        return replace(found, logits=tuple(rows))


class SkipsWhatNobodyAsksFor(Reference, name="further: skips"):
    """An engine whose cache is corrupted by a batch without outputs."""

    def evaluate(self, request: Request) -> Evaluation:
        batches = (
            b if b.outputs.any() or not b.positions[0] else replace(b, tokens=b.tokens * 0)
            for b in request.batches
        )
        return super().evaluate(replace(request, batches=tuple(batches)))


class Remembers(Reference):
    """An engine that repeats its answer to an earlier request if the first batch's tokens have the
    same `key`."""

    key: Callable[[list[int]], tuple[int, ...]]

    def evaluate(self, request: Request) -> Evaluation:
        known: dict[Any, Evaluation] = self.__dict__.setdefault("known", {})
        batches = tuple((tuple(b.positions), tuple(b.outputs)) for b in request.batches)
        seen = (type(self).key(request.batches[0].tokens.tolist()), batches)
        if request.capture:
            return super().evaluate(request)
        return known.setdefault(seen, super().evaluate(request))


def engine(name: str, base: type[Reference] = Reference, **changes: Any) -> str:
    type("Made", (base,), changes, name=f"further: {name}")
    return f"further: {name}"


def through(change: Callable[[Bools, Batch], Bools]) -> str:
    return engine(change.__name__, Wrong, model_class=seen_through(change))


WRONG = {
    engine("rows behind 64", ops=RowsBehind64): {LONG, EDGE},
    engine("few rows", ops=FEW_ROWS): {LONG, JOINED},
    engine("four rows and one", ops=FOUR_AND_ONE): {LONG},
    engine("positions in a byte", ops=PositionsInAByte): {LONG, EDGE},
    engine("last id", ops=LastIdIsUnknown): {LONG, EDGE},
    through(no_more_than_256_cells): {LONG, EDGE},
    through(causal_by_row): {LONG, JOINED},
    through(later_sequences_leak): {JOINED},
    through(ids_of_one_bit): {JOINED},
    engine("cells for positions", Wrong, model_class=CellsForPositions): {JOINED},
    LastRowsOfLater.name: {LONG, JOINED},
    AloneOnAnEmptyCache.name: {ALONE},
    SkipsWhatNobodyAsksFor.name: {LONG},
    engine("whole tiles", ops=WHOLE_TILES): {LONG},
    through(splits_of_128): {LONG, EDGE},
    through(splits_of_256): {EDGE},
    engine("known by its size", Remembers, key=staticmethod(len)): {FIRST, MIDDLE, LAST},
    engine("known by its beginning", Remembers, key=staticmethod(lambda t: tuple(t[:8]))): {
        *(MIDDLE, LAST)
    },
    engine("known but for its end", Remembers, key=staticmethod(lambda t: tuple(t[:-4]))): {LAST},
    engine("known by its end", Remembers, key=staticmethod(lambda t: tuple(t[8:]))): {FIRST},
}


class OneBatchOfSeveral(Reference, name="further: one batch of several"):
    """An honest engine that accepts one prompt, and then only single tokens of its sequence."""

    def evaluate(self, request: Request) -> Evaluation:
        if any(len(b) > 1 for b in request.batches[1:]) or request.batches[0].seq_ids.any():
            raise Unsupported("single tokens behind a prompt")
        return super().evaluate(request)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("model"), n_layer=1, n_vocab=312, n_ctx_train=N)


def logits_of(model: Path, engine: str) -> list[Verdict]:
    with context_of(model, engine=engine, n_tokens=32) as context:
        return list(run_suites(context, ("logits",)))


@pytest.mark.parametrize("engine", WRONG)
def test_fault_in_a_longer_run_is_found(engine: str, model: Path) -> None:
    first, *wrong = logits_of(model, engine)
    # a prompt of 32 tokens with two more, and other ways to ask for it
    assert first.status == "agreed"
    assert statuses(wrong) == {"diverged"}
    found = {next(w for w in ASKED if v.detail["asked"].startswith(w)) for v in wrong}
    assert found == WRONG[engine]
    assert all(v.summary.startswith(v.detail["asked"]) for v in wrong)


def test_place_is_a_batch_and_its_token(model: Path) -> None:
    _, wrong, _ = logits_of(model, "further: last id")
    assert (wrong.detail["batch"], wrong.detail["token_of_batch"]) == (0, 0)
    _, wrong, _ = logits_of(model, "further: last rows")
    assert wrong.detail["batch"] == batch_sizes(N).index(FILLED)
    assert wrong.detail["token_of_batch"] in (1, 3)


def test_missing_answer_is_named_and_accuses_no_engine(model: Path) -> None:
    (verdict,) = logits_of(model, "further: one batch of several")
    assert verdict.status == "agreed"
    for words in (LONG, JOINED):
        assert f"not compared: {words}" in verdict.summary or f"; {words}" in verdict.summary
    ways = [
        "with tensors shown",
        "with outputs of some tokens only",
        EDGE,
        FIRST,
        MIDDLE,
        LAST,
        ALONE,
    ]
    assert verdict.detail["same"] == ways


class RefusesWhatIsMore(Reference, name="further: refuses what is more"):
    """An engine that fails in these runs without declaring that it cannot answer them."""

    def evaluate(self, request: Request) -> Evaluation:
        if any(len(b) > 1 for b in request.batches[1:]) or request.batches[0].seq_ids.any():
            raise EngineError("the cache is corrupt")
        return super().evaluate(request)


def test_undeclared_refusal_of_an_engine_is_a_gap(model: Path) -> None:
    found = logits_of(model, RefusesWhatIsMore.name)
    assert [v.status for v in found] == ["agreed", *["not-compared"] * 3]
    for verdict, words in zip(found[1:], ("beside another sequence", LONG, JOINED), strict=True):
        assert verdict.summary.startswith(words)
        assert verdict.summary.endswith("the cache is corrupt")
    assert exit_code(found) == 3


@pytest.mark.parametrize(("error", "code"), [(EngineError, 1), (Unsupported, 3)])
def test_refusal_of_another_token_sets_the_exit_code(
    error: type[EngineError], code: int, model: Path
) -> None:
    def evaluate(self: Reference, request: Request) -> Evaluation:
        known = self.__dict__.setdefault("known", request.batches[0].tokens.tolist())
        first = request.batches[0].tokens.tolist()
        if len(first) == len(known) and first != known:
            raise error("no such token")
        return Reference.evaluate(self, request)

    found = logits_of(model, engine(f"another token {code}", evaluate=evaluate))
    assert found[0].status == "agreed"
    assert exit_code(found) == code


def runs_of(model: Path) -> Iterator[tuple[Batch, ...]]:
    with context_of(model, n_tokens=32) as context:
        yield from (run.batches for run in further_runs(context))


def test_small_vocabulary_is_covered_and_the_cache_filled(model: Path) -> None:
    long, *_ = runs_of(model)
    tokens = np.concatenate([batch.tokens for batch in long])
    assert len(tokens) == N
    assert set(tokens.tolist()) == set(range(312))
    assert tokens[:2].tolist() == [311, 0]


def test_positions_stay_within_the_model(tmp_path: Path) -> None:
    long, *_ = runs_of(written(tmp_path, n_ctx_train=50))
    assert sum(map(len, long)) == 50
    joined, *_ = runs_of(written(tmp_path, n_ctx_train=36))
    assert {int(s) for batch in joined for s in batch.seq_ids} == {0, 1, 2}


@pytest.mark.parametrize("n", [37, 103, 104, 300, 512])
def test_batches_have_all_sizes_and_fill_the_context(n: int) -> None:
    sizes = batch_sizes(n)
    assert sum(sizes) == n
    assert tuple(sizes[-len(FEW) :]) == FEW
    assert all(sizes)


def test_batch_sizes_leave_several_remainders_after_whole_tiles() -> None:
    assert {size % 8 for size in batch_sizes(512) if size > 16} == {0, 3, 4, 5, 6, 7}
    assert max(batch_sizes(512)) > 256
    assert 21 in batch_sizes(256)  # 21 rows leave remainders for two kernels
