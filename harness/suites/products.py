"""Is every product with weights right where next to nothing is rounded: on nearly empty inputs?

Float additions hide small faults: of 4096 terms in float32 a scale that is off by 1e-4 may be the
order of the sum. So both engines are given inputs of which each token keeps a few neighbouring
values and the rest is zero. What is zero is exact in any order, and the bound counts what is left:
a scale that is off by a few parts in a million shows, however long the rows are.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.trace import SITES
from harness.facts import ModelFacts
from harness.findings import Findings, Values, errors_between
from harness.locate import along_nodes, judged, on_values, trace_of
from harness.records import Evaluation, Request, Verdict
from harness.report.text import explain_finding
from harness.suites._shown_products import products_between_nodes, takes_nodes
from harness.suites._sparse_products import KEPT, products_along_nodes
from harness.suites.base import Context, Suite
from harness.suites.trace import detail_of, left_out

PRODUCTS = {
    name: info
    for name, info in SITES.items()
    if info.weight is not None and info.op in ("MUL_MAT", "MUL_MAT_ID")
}
INPUTS = {name for info in PRODUCTS.values() for name in info.inputs} - {"ffn_moe_topk"}


class Products(Suite, name="products"):
    order = 70

    def inapplicable(self, facts: ModelFacts) -> str:
        return facts.no_run

    def run(self, context: Context) -> Iterator[Verdict]:
        found = on_sparse_inputs(context)
        for finding in found.guilty:
            yield context.verdict(
                "products",
                "diverged",
                explain_finding(finding),
                detail_of(found, finding),
                key=("products", finding.at_fault, finding.op, finding.site.name),
            )
        yield from left_out(context, "products", found)
        if found.all or not (found.not_shown or found.hidden or found.not_given):
            yield rest(context, found)


def rest(context: Context, found: Findings) -> Verdict:
    """What agrees, and how small a fault would have shown."""
    fine = [f for f in found.all if f.mismatch is None and f.compared]
    shown = [f.sees for f in fine if math.isfinite(f.sees)]
    if not shown and not found.guilty:  # the empty ones are named already
        text = "the products of what was kept of their inputs are zero throughout"
        return context.verdict("products", "not-compared", text)
    text = f"{len(fine)} of {len(found.all)} products agree on nearly empty inputs"
    if shown:
        text += f"; a scale that is off by {max(shown):.1e} shows at each"
    if len(shown) < len(fine):
        text += f" but {len(fine) - len(shown)}, which are zero throughout"
    detail = {"sites": len(found.all), "agreed": len(fine), "sees": max(shown, default=None)}
    return context.verdict("products", "agreed", text, detail)


def on_sparse_inputs(context: Context) -> Findings:
    """The products of the prompt, each on the sparse inputs that both engines were given."""
    context.progress("products on nearly empty inputs")
    if takes_nodes(context):
        return products_between_nodes(context, kept)
    if along_nodes(context):
        return products_along_nodes(context)
    batches = context.batches[:1]
    given = sparse(trace_of(context.oracle_run).values(), context.seed)
    run: Evaluation = context.ask(
        context.oracle, "evaluate", Request(batches=batches, capture=True, replace=given)
    )
    oracle = trace_of(run).values()
    local, replace = on_values(context, batches, oracle | given)
    found = judged(
        context, batches, oracle, local, replace, errors_between(oracle, local), given=given
    )
    return dataclasses.replace(
        found,
        all=tuple(f for f in found.all if f.site.name in PRODUCTS),
        not_shown=tuple(s for s in found.not_shown if s.name in PRODUCTS),
        hidden=tuple(s for s in found.hidden if s.name in PRODUCTS),
        not_given=tuple(s for s in found.not_given if s.name in PRODUCTS),
    )


def sparse(values: Values, seed: int) -> Values:
    """What the prompt's products work on, each token with `KEPT` of its values and zeros."""
    return {
        site: kept(value, seed)
        for site, value in values.items()
        if site.step == 0 and site.name in INPUTS
    }


def kept(value: NDArray[Any], seed: int) -> NDArray[Any]:
    """(tokens, ..., width) with a run of `KEPT` values in each token, spread over the width."""
    runs = -(-value.shape[-1] // KEPT)
    out = np.zeros_like(value)
    for token in range(len(value)):
        start = (seed + token * max(1, runs // len(value))) % runs * KEPT
        out[token, ..., start : start + KEPT] = value[token, ..., start : start + KEPT]
    return out
