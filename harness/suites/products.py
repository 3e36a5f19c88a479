"""Products with weights on nearly empty inputs, where little is rounded.

Sums of floats hide small faults: in a float32 sum of 4096 terms, a scale that is off by 1e-4 may
look like a different order of the terms. So both engines get inputs in which each token keeps a few
neighbouring values, and all others are zero. Adding zeros is exact in any order, so the limit
depends only on the other terms. A scale error of a few parts in a million shows, for rows of any
length. If the inputs are put into an engine's run, gates and norms also get inputs that small
models do not have.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.graph.node_formats import PRODUCTS
from lockstep.harness.judging.findings import Findings
from lockstep.harness.judging.judge import SiteFinding
from lockstep.harness.locate.locate import no_tensors
from lockstep.harness.locate.segments import shows_tensors
from lockstep.harness.records import Site, Verdict
from lockstep.harness.suites.parts.sparse_products import (
    KEPT,
    SparseRun,
    judge_sparse_run,
    products_along_nodes,
    sparse_run,
)
from lockstep.harness.suites.parts.tensor_suite import TensorSuite, left_out

SINGLE = ("multiply", "operate")  # levels that only golden vectors need


class Products(TensorSuite, name="products"):
    order = 70

    def run(self, context: Context) -> Iterator[Verdict]:
        yield from asked_elsewhere(context)
        yield from super().run(context)

    def ask(self, context: Context) -> SparseRun:
        return sparse_run(context, keep_run)

    def judge(self, context: Context, shown: SparseRun) -> Findings:
        return judge_sparse_run(context, shown)

    def locate(self, context: Context) -> Findings:
        return on_sparse_inputs(context)

    def verdicts(self, context: Context, found: Findings) -> Iterator[Verdict]:
        yield from left_out(context, "products", found)
        if found.all or not (found.not_shown or found.hidden or found.not_given):
            yield rest(context, found)


def asked_elsewhere(context: Context) -> Iterator[Verdict]:
    """Yield a verdict that names the levels for single ops, which `check` does not test."""
    offered = [level for level in SINGLE if level in (context.subject_info.levels or ())]
    if offered:
        text = f"check does not ask {context.subject.name} for {' and '.join(offered)}; "
        text += "to test them: lockstep golden verify --engine COMMAND"
        yield context.verdict("products", "not-applicable", text, {"offered": offered})


def rest(context: Context, found: Findings) -> Verdict:
    """Return the verdict on agreeing products, with the smallest fault that would have shown."""
    products = products_in(found)
    fine = [f for f in products if f.mismatch is None and f.compared]
    others = [f for f in found.all if f not in products and f.mismatch is None and f.compared]
    empty = sum(not math.isfinite(f.sees) for f in fine)
    shown = visible_in_some_batch(fine)
    if not products and not found.guilty:  # the guilty ops are named already
        text = "the engine shows no matrix product together with its input"
        if others:
            text += f"; {len(others)} gates on large inputs and norms on small ones agree"
        return context.verdict("products", "not-applicable", text)
    if not shown and not found.guilty:  # the guilty ops are named already
        text = "all products on the nearly empty inputs are zero throughout"
        return context.verdict("products", "not-compared", text)
    text = f"{len(fine)} of {len(products)} products agree on nearly empty inputs"
    steps = sorted({f.site.step for f in products})
    if len(steps) > 1:
        text += f" of {' and '.join(str(len(context.batches[step])) for step in steps)} tokens"
    if shown:
        text += f"; a scale error of {max(shown):.1e} would show at each product"
    if empty:
        text += f" but {empty}, which are zero throughout"
    if others:
        text += f"; {len(others)} gates on large inputs and norms on small ones agree"
    detail = {"sites": len(products), "agreed": len(fine), "sees": max(shown, default=None)}
    return context.verdict("products", "agreed", text, detail)


def visible_in_some_batch(fine: Sequence[SiteFinding]) -> list[float]:
    """Return the smallest visible scale error of each product. A wrong weight shows in all batches,
    and a batch of one token has fewer roundings, so the smallest error of any batch is returned."""
    best: dict[Site, float] = {}
    for f in fine:
        product = replace(f.site, step=0)
        if math.isfinite(f.sees):
            best[product] = min(f.sees, best.get(product, f.sees))
    return list(best.values())


def products_in(found: Findings) -> list[SiteFinding]:
    return [finding for finding in found.all if finding.op.endswith(PRODUCTS)]


def on_sparse_inputs(context: Context) -> Findings:
    """Return the findings on the products of the run, each with nearly empty inputs. Raises
    NoAnswer."""
    context.progress("products on nearly empty inputs")
    if context.facts.no_run:
        raise NoAnswer("not-applicable", context.facts.no_run, {})
    if context.subject_info.computes_nodes:
        return products_along_nodes(context)
    if shows_tensors(context):
        return judge_sparse_run(context, sparse_run(context, keep_run))
    raise no_tensors(context)


def keep_run(value: NDArray[Any], seed: int) -> NDArray[Any]:
    """Keep `KEPT` neighbouring values of each token, and set the others to zero. The places are
    spread over the width. value: (tokens, ..., width)."""
    runs = -(-value.shape[-1] // KEPT)
    out = np.zeros_like(value)
    for token in range(len(value)):
        start = (seed + token * max(1, runs // len(value))) % runs * KEPT
        out[token, ..., start : start + KEPT] = value[token, ..., start : start + KEPT]
    return out
