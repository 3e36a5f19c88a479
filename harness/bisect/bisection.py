"""`lockstep bisect`: the first layer that diverges, the guilty ops in it, and the proof."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from lockstep.harness.check.check import run_suites, suites_named
from lockstep.harness.context.further_runs import (
    further_runs,
    ids_of_narrow_integers,
    some_at_once,
)
from lockstep.harness.context.repeats import Unsteady, unsteady
from lockstep.harness.context.runs import Run
from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.judging.findings import Findings, by_layer
from lockstep.harness.judging.judge import SiteFinding
from lockstep.harness.locate.locate import locate, oracles_outputs, outputs_of
from lockstep.harness.locate.proof import Patched, patch
from lockstep.harness.records import EngineInfo, Evaluation, Request, Site, Verdict
from lockstep.harness.suites.embeddings import further_run
from lockstep.harness.suites.parts.kept_in_f16 import kept_in_f16
from lockstep.harness.suites.parts.whole_runs import compare_runs
from lockstep.harness.suites.products import on_sparse_inputs

OF_TWIN = "the F32 twin, which needs no conversions"
NO_OP = 4  # exit code: the engines diverge, but no op is wrong on its own inputs
WRITTEN = "SET_ROWS"  # op that writes into the cache
UNANSWERED = {"crashed", "timed-out", "malformed", "not-compared"}
Place = tuple[int | None, str]  # layer and site


@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """One layer of the subject's own run, or the part before or after the layers."""

    layer: int | None
    last: str  # the layer's last site in execution order
    error: float  # error of that site relative to its largest value, which the next layer gets
    guilty: tuple[str, ...]  # sites of the layer with a wrong op


@dataclass(frozen=True, kw_only=True, eq=False)
class Bisection:
    found: Findings
    layers: tuple[Layer, ...]
    culprits: tuple[SiteFinding, ...]  # one for each place, from the first step that shows it
    patched: Patched | None = None  # None: nothing to repair, or `failed` gives the reason
    failed: str = ""
    logits: Verdict | None = None  # verdict on the subject's own run; None: there are culprits
    asked: str = ""  # the further question of check in which the difference shows
    others: tuple[Verdict, ...] = ()  # other findings of check if no op is guilty
    engines: tuple[EngineInfo, ...] = ()  # oracle and subject
    # the subject's runs differ from each other, so a patch shows nothing
    unsteady: Unsteady | None = None
    in_f16: str = ""  # a note if the subject's cache seems to be F16 although it declares F32
    # for a twin: errors of the stored model that exceed what the twin explains, with their size
    # there
    as_stored: tuple[tuple[SiteFinding, float], ...] = ()

    @property
    def not_compared(self) -> tuple[Site, ...]:
        return self.found.not_compared

    @property
    def exit_code(self) -> int:
        """Return the exit code. If no op is wrong, the code is 0 only if the logits agree."""
        if self.culprits:
            return 1
        said = {v.status for v in (*self.others, *filter(None, [self.logits]))}
        if "diverged" in said:
            return 1 if self.found.other_graph else NO_OP
        if said & UNANSWERED:
            return 3
        agree = self.logits is not None and self.logits.status == "agreed"
        return 0 if agree and not self.found.not_shown and any(map(compares, self.found.all)) else 3

    @property
    def first(self) -> SiteFinding | None:
        return self.culprits[0] if self.culprits else None


def bisect(context: Context, on_twin: Callable[[], Bisection | None] = lambda: None) -> Bisection:
    """Bisect the usual run. If it conforms, bisect the further runs that `check` finds wrong, and
    return the first bisection that finds a wrong op. If none does, return the remaining verdicts
    with the first bisection.

    `on_twin` bisects the usual run on the model's F32 twin, if the twin shows more and finds
    something.
    """
    first = bisect_run(context)
    if (clearer := on_twin()) is not None:
        return replace(clearer, as_stored=left_by_twin(first, clearer))
    if first.exit_code:
        return first
    said = tuple(said_by_check(context))
    wrong = tuple(verdict for verdict in said if verdict.status == "diverged")
    # an answer to earlier tokens is no op's fault, although the embedding is the first to differ
    old = [verdict for verdict in wrong if verdict.detail.get("answered_before")]
    asked = {verdict.detail.get("asked") for verdict in wrong if verdict not in old}
    runs = [run for run in runs_asked(context, first) if run.words in asked]
    if any(verdict.suite == "decode" and "index" in verdict.detail for verdict in wrong):
        runs.append(some_at_once(context))
    for run in runs:
        found = bisect_further(context, run)
        if found is not None:
            return found
    if any(verdict.suite == "products" for verdict in wrong):
        found = make_bisection(
            on_sparse_inputs(context), asked="on inputs that Lockstep puts into its run"
        )
        if found.culprits:
            return found
    return replace(first, others=wrong or tuple(v for v in said if v.status in UNANSWERED))


def left_by_twin(first: Bisection, twin: Bisection) -> tuple[tuple[SiteFinding, float], ...]:
    """Return the faults of weights, which the twin hides. A fault of the graph is equally large in
    both runs. Honest runs may differ by the limit, so a larger difference comes from the
    weights."""
    there: dict[Place, float] = {}
    for f in twin.found.all:
        place = f.layer, f.site.name
        there[place] = max(there.get(place, 0.0), f.err_local)
    pairs = ((f, there.get((f.layer, f.site.name), 0.0)) for f in first.culprits)
    return tuple((f, off) for f, off in pairs if not f.err_local <= off + allowed_at(f))


def allowed_at(finding: SiteFinding) -> float:
    """Return the limit of a wrong site; 0.0 if the site is missing or has another shape."""
    return 0.0 if finding.mismatch is None else finding.mismatch.allowed


def said_by_check(context: Context) -> Iterable[Verdict]:
    """Run all suites except `trace`, which the bisection has already answered, and except suites
    about the oracle alone. They run as suites that the user did not name."""
    names = [s.name for s in suites_named(()) if not s.of_oracle_alone and s.name != "trace"]
    return run_suites(replace(context, named=False), names)


def runs_asked(context: Context, first: Bisection) -> Iterable[Run]:
    if first.found.embeddings:
        return [further_run(context)]
    return [*further_runs(context), ids_of_narrow_integers(context), some_at_once(context)]


def bisect_further(context: Context, run: Run) -> Bisection | None:
    """Return the bisection of a further run; None if it finds no wrong op, or if there are no
    tensors to compare."""
    try:
        found = bisect_run(replace(context, given=run.batches))
    except NoAnswer:
        return None
    return replace(found, asked=run.words) if found.culprits else None


def bisect_run(context: Context) -> Bisection:
    found = locate(context)
    if found.embeddings:
        context = context.for_embeddings()
    logits = None if found.guilty else own_logits(context, found)
    patched, failed, shaky, in_f16 = None, "", None, ""
    try:
        if logits is None or logits.status == "diverged":
            shaky = unsteadiness(context, found)
        if found.guilty and not shaky:
            patched = patch(context, found)
            in_f16 = cache_in_f16(context, found)
    except NoAnswer as error:  # the findings so far are valid
        failed = error.summary
    proof = {"patched": patched, "failed": failed, "in_f16": in_f16}
    return make_bisection(found, logits=logits, unsteady=shaky, **proof)


def cache_in_f16(context: Context, found: Findings) -> str:
    """Return a note if the subject's outputs are much nearer to a run with an F16 cache and a wrong
    op reads or writes the cache; else ""."""
    if not any(WRITTEN in finding.op for finding in found.guilty):
        return ""
    own = np.concatenate(outputs_of(context, context.subject, found))
    return kept_in_f16(context, context.batches, own, found.what)


def make_bisection(found: Findings, **known: Any) -> Bisection:
    culprits: dict[Place, SiteFinding] = {}
    for finding in found.guilty:
        culprits.setdefault((finding.layer, finding.site.name), finding)
    places = tuple(culprits.values())
    return Bisection(found=found, layers=layers_of(found), culprits=places, **known)


def unsteadiness(context: Context, found: Findings) -> Unsteady | None:
    """Return how the subject's runs differ from each other; None if they are equal. A replacement
    proves a cause only if runs repeat."""
    capture = context.subject_info.shows != ()
    request = Request(batches=context.batches, embeddings=found.embeddings, capture=capture)
    first: Evaluation = context.ask(context.subject, "evaluate", request)
    return unsteady(context.subject, request, first)


def own_logits(context: Context, found: Findings) -> Verdict:
    """Compare the subject's logits with the oracle's, and return the verdict. Equal logits count as
    conforming, although a value that the engine does not show may be wrong."""
    oracle, own = (
        Evaluation(logits=rows, trace=None)
        for rows in (oracles_outputs(context, found), outputs_of(context, context.subject, found))
    )
    truth = np.concatenate(context.noise.logits)
    return compare_runs(context, "bisect", context.batches, oracle, own, truth, found.what)


def compares(finding: SiteFinding) -> bool:
    return finding.compared > 0


def layers_of(found: Findings) -> tuple[Layer, ...]:
    """Return the layers in graph order, as the prompt's run (step 0) shows them, each with its
    worst error. A site that is wrong only in a later step gets that step in its name, for example
    if one cell of the cache is not read."""
    first = [f for f in found.all if f.site.step == 0]
    at_first = {(f.layer, f.site.name) for f in first if f.mismatch is not None}
    later: dict[Place, int] = {}
    for f in found.guilty:
        if (f.layer, f.site.name) not in at_first:
            later.setdefault((f.layer, f.site.name), f.site.step)
    worst: dict[Place, float] = {}
    for f in found.all:
        place, error = (f.layer, f.site.name), found.free.get(f.site)
        if error is not None:  # sites that were never shown in the subject's own run are left out
            worst[place] = max(worst.get(place, 0.0), error)
    groups = [[first[i] for i in group] for group in by_layer([f.layer for f in first])]
    return tuple(
        Layer(
            layer=group[0].layer,
            last=group[-1].site.name,
            error=worst.get((group[-1].layer, group[-1].site.name), inf),
            guilty=tuple(name for f in group if (name := as_guilty(f, later))),
        )
        for group in groups
    )


def as_guilty(finding: SiteFinding, later: Mapping[Place, int]) -> str:
    """Return the site's name for the list of wrong sites; "" if it is right. `later` maps a place
    to the step in which it is first wrong."""
    name = finding.site.name
    if finding.mismatch is not None:
        return name
    step = later.get((finding.layer, name))
    return "" if step is None else f"{name} (step {step})"
