"""The trial of one engine by the ordinary suites and `bisect`, seen through a view."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from lockstep.engine.architectures.base import Architecture
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.asking.session import LocalSession
from lockstep.harness.bisect.bisection import bisect
from lockstep.harness.blackbox.in_check import questions
from lockstep.harness.catalogue.fixed_limits import Truth, passed_by, truth_of
from lockstep.harness.catalogue.memory import remember
from lockstep.harness.catalogue.models import model_for
from lockstep.harness.catalogue.opening import KnownModels
from lockstep.harness.catalogue.views import ALL, VIEWS, View, seen_through, views_of
from lockstep.harness.check.check import (
    Opened,
    Plan,
    describe_engine,
    open_plan,
    run_suites,
    suites_named,
)
from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.honest.base import HonestEngine
from lockstep.harness.mutants.base import Mutant
from lockstep.harness.mutants.tokenizers import WrongTokenizer
from lockstep.harness.records import EXACT, Settings, Verdict

Wrong = type[Mutant] | type[WrongTokenizer]
QUESTIONS_OF = {"metadata": ("metadata",), "tokens": ("tokenize", "detokenize", "tokenizer")}
N_TOKENS = 64  # tokens of greedy text
HONEST = HonestEngine.group


@dataclass(frozen=True, kw_only=True)
class SeenInView:
    """The result of a trial in one view."""

    caught: bool
    # False: this view shows nothing of the model, for example because embeddings are no text
    compared: bool = True
    suite: str = ""  # the first suite with a finding
    said: str = ""
    seconds: float = 0.0  # processor time of this process


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The trial of one engine. The family HONEST is for engines without a mistake."""

    engine: str
    family: str
    mistake: str
    effect: str
    source: str
    model: str
    preset: str = EXACT.name
    seed: int = 0  # seed of the tokens
    expected: str  # the wrong site
    found: str = ""  # the first site that bisect found, or the suite if no op is wrong
    views: dict[str, SeenInView] = field(default_factory=dict)
    layer_right: bool = False
    op_right: bool = False
    confirmed: bool = False
    # by fixed limit: True if the engine passes it
    passes: dict[str, bool] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def honest(self) -> bool:
        return self.family == HONEST


def trial_of(row: dict[str, Any]) -> Trial:
    return Trial(
        **{**row, "views": {name: SeenInView(**seen) for name, seen in row["views"].items()}}
    )


# --- facts about a model without an engine ------------------------------------------------------


@dataclass(kw_only=True)
class TrialBench:
    """A model and its oracle, with cached answers."""

    plan: Plan
    opened: Opened
    truth: Truth
    made: KnownModels  # made models and their answers, for one question each

    @property
    def context(self) -> Context:
        return self.opened.context

    def close(self) -> None:
        self.opened.close()
        self.made.close()


def bench_for(shows_on: str, folder: Path, settings: Settings = EXACT, seed: int = 0) -> TrialBench:
    path = model_for(shows_on, folder)
    plan = Plan(
        case=shows_on,
        model=path,
        subject_model=path,
        settings=settings,
        n_steps=N_TOKENS,
        seed=seed,
    )
    opened = open_plan(plan, lambda _: None)
    context = opened.context
    remember(context)
    embeds = Architecture.member(context.facts.architecture).embeds
    if not embeds:
        context.noise_on(context.batches)
    kept = folder / "made"
    kept.mkdir()
    truth = truth_of(context, embeds=embeds)
    return TrialBench(plan=plan, opened=opened, truth=truth, made=KnownModels(folder=kept))


# --- one engine ---------------------------------------------------------------------------------


def opened_anew(bench: TrialBench, name: str) -> LocalSession:
    return LocalSession(Adapter.member(name), bench.context.subject_model, bench.context.settings)


def show_through(bench: TrialBench, name: str, view: View) -> Context:
    """Return a context for one view, with a new session, so that an engine has no state from an
    earlier view."""
    base, session = bench.context, seen_through(view, opened_anew(bench, name))
    info = describe_engine(session, under_test=True)
    context = base.with_subject(session, base.subject_model, info)
    context.opening = bench.made.opening(partial(LocalSession, Adapter.member(name)), view)
    context.on_made_models = questions(bench.plan)
    return context


def suites(cls: type[Reference]) -> list[str]:
    """Return the suites whose questions the engine answers with its own code. Other tests compare
    the unchanged reference with llama.cpp."""
    same = {
        name
        for name, questions in QUESTIONS_OF.items()
        if all(getattr(cls, question) is getattr(Reference, question) for question in questions)
    }
    all_of_them = (suite.name for suite in suites_named(()) if not suite.of_oracle_alone)
    return [name for name in all_of_them if name not in same]


def look(bench: TrialBench, cls: type[Reference], view: View) -> SeenInView:
    started = time.process_time()
    try:
        context = show_through(bench, cls.name, view)
    except NoAnswer as error:
        return SeenInView(caught=error.status != "not-compared", suite="start", said=str(error))
    verdicts = []
    # only the first finding counts, because bisect does the rest
    for verdict in run_suites(context, suites(cls)):
        verdicts.append(verdict)
        if blames(verdict):
            break
    context.subject.close()
    first = verdict if blames(verdict) else None
    return SeenInView(
        caught=first is not None,
        compared=any(blames(v) or v.status in ("agreed", "excused") for v in verdicts),
        suite=first.suite if first else "",
        said=(first.summary if first else why_unfinished(verdicts))[:300],
        seconds=round(time.process_time() - started, 2),
    )


def blames(verdict: Verdict) -> bool:
    """Return True if the verdict blames the engine. A crash of the engine blames it too."""
    return verdict.status in ("diverged", "crashed", "malformed", "timed-out")


def why_unfinished(verdicts: Sequence[Verdict]) -> str:
    lacking = [v for v in verdicts if v.status in ("not-compared", "internal")]
    return "; ".join(f"{v.suite}: {v.status}: {v.summary}" for v in lacking)


def place(layer: int | None, site: str) -> str:
    return site if layer is None else f"{site}-{layer}"


@dataclass(frozen=True, kw_only=True)
class Located:
    found: str
    layer: int | None
    confirmed: bool


def locate(bench: TrialBench, name: str) -> Located:
    """Bisect an engine that shows all tensors."""
    context = show_through(bench, name, ALL)
    try:
        result = bisect(context)
    except NoAnswer as error:
        return Located(found=f"no answer: {error}", layer=None, confirmed=False)
    finally:
        context.subject.close()
    confirmed = result.patched is not None and result.patched.confirms
    # `unsteady` says where two runs of the engine begin to differ
    seen = result.first or result.unsteady
    site = seen.site if seen else None
    if site is None:
        return Located(found="nowhere", layer=None, confirmed=confirmed)
    return Located(found=place(site.layer, site.name), layer=site.layer, confirmed=confirmed)


def try_wrong(bench: TrialBench, cls: Wrong, model: str, through: Sequence[View] = VIEWS) -> Trial:
    """Try a wrong engine. `through` lists the views, which must include ALL."""
    started = time.process_time()
    views = {view.name: look(bench, cls, view) for view in views_of(cls, through)}
    site, layer = (cls.site, cls.layer) if issubclass(cls, Mutant) else ("tokens", None)
    if at_suite := site in {suite.name for suite in suites_named(())}:
        located = Located(found=views[ALL.name].suite, layer=None, confirmed=True)
    else:
        located = locate(bench, cls.name)
    right = located.found == place(layer, site)
    return Trial(
        engine=cls.name,
        family=cls.group,
        mistake=cls.mistake,
        effect=getattr(cls, "effect", ""),
        source=getattr(cls, "source", ""),
        model=model,
        expected=place(layer, site),
        found=located.found,
        views=views,
        layer_right=right if at_suite else located.found != "nowhere" and located.layer == layer,
        op_right=right,
        confirmed=located.confirmed,
        passes=passed_by(bench.truth, opened_anew(bench, cls.name)),
        seconds=round(time.process_time() - started, 2),
    )


def try_honest(bench: TrialBench, cls: type[HonestEngine], model: str) -> Trial:
    started = time.process_time()
    return Trial(
        engine=cls.name,
        family=HONEST,
        mistake=cls.design,
        effect="",
        source="",
        model=model,
        preset=bench.context.settings.name,
        seed=bench.context.seed,
        expected="nowhere",
        views={
            view.name: look(bench, cls, view)
            if view.name in cls.views
            else SeenInView(caught=False, compared=False)
            for view in VIEWS
        },
        found=locate(bench, cls.name).found,
        passes=passed_by(bench.truth, opened_anew(bench, cls.name)),
        seconds=round(time.process_time() - started, 2),
    )
