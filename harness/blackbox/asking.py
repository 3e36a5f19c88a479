"""Questions to both engines about probe models, judged as in `check`. A probe model is made from
the user's model for one question."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.engine.batch import Batch
from lockstep.engine.errors import EngineError, Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.gguf.split_files import open_model
from lockstep.harness.blackbox.few_tokens import FewTokens, cut, few_tokens_of
from lockstep.harness.blackbox.in_halves import (
    COMPUTED_IN,
    InHalves,
    Kept,
    explain_by_halves,
    explain_embeddings,
)
from lockstep.harness.blackbox.kept_bits import kept_in, run_alone
from lockstep.harness.blackbox.offers import embeds
from lockstep.harness.blackbox.rewriting import Recipe, rewrite
from lockstep.harness.blackbox.roles import Node, graph_of, mask_of, role_of
from lockstep.harness.blackbox.slices import (
    ALIKE,
    architecture,
    first_layers,
    n_layers,
    roles_of,
    slice_of,
)
from lockstep.harness.check.check import (
    LLAMA_CPP,
    BadInput,
    Opened,
    Plan,
    open_plan,
    run_suites,
    verdict_for_no_answer,
)
from lockstep.harness.context.repeats import unsteady
from lockstep.harness.context.runner import Runner
from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.graph.program import Graph
from lockstep.harness.judging.factor_designs import FactorDesign
from lockstep.harness.records import (
    ENGINE,
    REFUSED,
    EngineInfo,
    Evaluation,
    Request,
    Settings,
    Status,
    Verdict,
)
from lockstep.harness.suites.parts.lists import LOGARITHMS
from lockstep.harness.suites.parts.one_batch import with_one_batch
from lockstep.harness.suites.parts.whole_runs import compare_runs
from lockstep.harness.synth.twin import KEPT

SUITE = "black-box"
# keys of a verdict's detail that hold the kind and size of a difference
OF_EXTENT = (
    *("kind", "margin", "allowed", "expected", "actual", "mismatched", "total", "reason"),
    *(COMPUTED_IN, LOGARITHMS),
)
Make = Callable[[GgufFile], Recipe]


@dataclass(frozen=True, kw_only=True)
class SliceAnswer:
    """The result of comparing both engines on one model."""

    status: Status
    summary: str
    worst: float = 0.0  # share of the largest logit; 0 if tokens were compared
    allowed: float = 0.0
    engines: tuple[EngineInfo, ...] = ()  # the engines that answered
    extent: Mapping[str, Any] = field(default_factory=dict)  # kind and size of a divergence

    @property
    def agrees(self) -> bool:
        return self.status == "agreed"

    @property
    def differs(self) -> bool:
        return self.status in ("diverged", "crashed", "malformed", "timed-out")

    @property
    def is_in_halves(self) -> bool:
        """Return True if rounding to 16 bits explains the difference. Smaller faults are then
        invisible."""
        return COMPUTED_IN in self.extent

    @property
    def is_no_number(self) -> bool:
        """Return True if the engines differ and the value is NaN or infinite. A matrix of zeros
        does not mute such a value."""
        return self.differs and not isfinite(float(self.extent.get("actual", 0.0)))


@dataclass(kw_only=True)
class SliceAsker:
    """Asks both engines about probe models, such as slices. plan: the plan for the user's models;
    folder: the folder for probe models, written one at a time; opening: the function that opens
    both engines for a plan."""

    plan: Plan
    folder: Path
    progress: Callable[[str], None]
    opening: Callable[[Plan, Callable[[str], None]], Opened] = open_plan
    rounding: list[FactorDesign] | None = None  # see Context; the same list for all made models
    # for the oracle's file, and for the subject's file if it is another; kept because reading a
    # vocabulary takes long
    few: dict[bool, FewTokens | None] = field(default_factory=dict)
    whole_vocabulary: bool = False  # True: slices of one layer keep all tokens
    # by the nodes of a layer in llama.cpp's graph: the keys that make a model of this layer alone,
    # or the reason why none do
    roles: dict[tuple[tuple[Node, ...], bool], dict[str, int] | str] = field(default_factory=dict)

    @cached_property
    def file(self) -> GgufFile:
        return open_model(self.plan.model)

    @cached_property
    def subject_file(self) -> GgufFile:
        same = self.plan.subject_model == self.plan.model
        return self.file if same else open_model(self.plan.subject_model)

    def close(self) -> None:
        for name in ("file", "subject_file"):
            if name in self.__dict__:
                self.__dict__[name].close()

    # --- models made of the user's ------------------------------------------------------------

    def plan_for_made(self, make: Make) -> Plan:
        """Return the plan for the probe models. `make` makes a model from the oracle's file, and
        another from the subject's file if the two files differ."""
        ours = self.folder / "oracle.gguf"
        rewrite(self.file, make(self.file), ours)
        theirs = ours
        if self.subject_file is not self.file:
            theirs = self.folder / "subject.gguf"
            rewrite(self.subject_file, make(self.subject_file), theirs)
        return replace(self.plan, model=ours, subject_model=theirs)

    def with_few_tokens(self, file: GgufFile, recipe: Recipe) -> Recipe:
        """Return the recipe with a small vocabulary. file: the recipe's source, which is the
        oracle's or the subject's file."""
        own = file is self.file
        if own not in self.few:
            self.few[own] = few_tokens_of(file)
        return cut(recipe, self.few[own])

    def of_few_tokens(self, make: Make) -> Make:
        if self.whole_vocabulary:
            return make
        return lambda file: self.with_few_tokens(file, make(file))

    def wants_all_tokens(self, answer: SliceAnswer) -> bool:
        """Return True if the engine gave no answer on a model with few tokens. From then on all
        models have whole vocabularies. An engine may hard-code the size of its vocabulary, or ids
        of special tokens."""
        answered = answer.status in ("agreed", "diverged")
        if self.whole_vocabulary or answered or not any(self.few.values()):
            return False
        self.whole_vocabulary = True
        return True

    def ask_of_layer(self, make: Make, given: Sequence[Batch] = ()) -> SliceAnswer:
        """Ask about a layer on a model with few tokens. If the engine does not accept such a model,
        ask again with all tokens."""
        answer = self.ask(self.of_few_tokens(make), given)
        return self.ask(make, given) if self.wants_all_tokens(answer) else answer

    def ask(self, make: Make, given: Sequence[Batch] = ()) -> SliceAnswer:
        """Ask both engines about the probe model of `make`. given: the batches to run, for engines
        that show logits; empty for the usual run."""
        return self.answer_to(self.plan_for_made(make), given)

    def open(self, plan: Plan) -> Opened:
        opened = self.opening(plan, self.progress)
        opened.context.rounding = self.rounding
        return opened

    def answer_to(self, plan: Plan, given: Sequence[Batch] = ()) -> SliceAnswer:
        """Ask both engines, and return the result. An engine that cannot start counts as an engine
        that does not answer."""
        try:
            opened = self.open(plan)
        except NoAnswer as error:
            return left_unanswered(error, plan.oracle)
        except BadInput as error:
            return SliceAnswer(status="not-compared", summary=str(error))
        try:
            found = verdicts_of(opened, given, whole=plan is self.plan, kept=self.kept)
            answer = worst_of(found, plan.oracle)
            return replace(answer, engines=opened.engines)
        finally:
            opened.close()

    @property
    def kept(self) -> Kept | None:
        """Return a function that returns `halves`; None if the user's model has no quantised
        weights."""
        return (lambda: self.halves) if holds_quantised(self.file) else None

    @cached_property
    def halves(self) -> str | None:
        """Return "F16" or "BF16" if the engine does not distinguish numbers that are equal in that
        type. Return "" if the engine distinguishes them, and None if it does not answer."""
        with suppress(NoAnswer, BadInput, EngineError):
            return kept_in(self.file, self.layers_to_load, self.run_on)
        return None

    def run_on(self, recipe: Recipe) -> Evaluation:
        path = self.folder / "bits.gguf"  # a file of its own, because others may be open
        rewrite(self.file, self.with_few_tokens(self.file, recipe), path)
        return run_alone(self.open, replace(self.plan, model=path, subject_model=path))

    # --- roles of layers by number ------------------------------------------------------------

    @cached_property
    def graph(self) -> Graph:
        """Return llama.cpp's graph for one token of the whole model."""
        self.progress("reading the kind of each layer from llama.cpp's graph")
        return self.graph_in(self.plan.model)

    def graph_in(self, model: Path) -> Graph:
        settings: Settings = self.plan.settings
        runner = Runner(time_limit=self.plan.time_limit, memory_limit=self.plan.memory_limit)
        with runner.open(self.plan.oracle, model, settings) as session:
            return graph_of(session)

    def role(self, layer: int) -> dict[str, int]:
        """Return the metadata keys that make a one-layer model compute this layer as the whole
        model does. Raises Unsupported if no such keys are known."""
        if architecture(self.file) in ALIKE:
            return {}
        if self.plan.oracle != LLAMA_CPP:
            raise Unsupported("layers differ by number, and only llama.cpp's graph shows how")
        other_mask = mask_of(self.graph, layer) != mask_of(self.graph, 0)
        key = role_of(self.graph, layer), other_mask
        if key not in self.roles:
            self.roles[key] = self.find_role(layer, key)
        found = self.roles[key]
        if isinstance(found, str):
            raise Unsupported(found)
        return found

    def find_role(self, layer: int, wanted: tuple[tuple[Node, ...], bool]) -> dict[str, int] | str:
        path = self.folder / "role.gguf"
        for role in roles_of(self.file):
            if not role and wanted[1]:
                continue  # this role has another mask than the wanted layer
            rewrite(self.file, slice_of(self.file, layer, role=role), path)
            try:
                if role_of(self.graph_in(path), 0) == wanted[0]:
                    return dict(role)
            except EngineError:
                continue  # llama.cpp refuses this model or aborts
            finally:
                path.unlink()
        return f"layer {layer} depends on its number: no model of one layer can contain it"

    @cached_property
    def layers_to_load(self) -> int:
        """Return how many first layers make a model that llama.cpp loads, trying 1, 2, 4 and so on.
        Some architectures need a layer of each kind."""
        if architecture(self.file) in ALIKE or self.plan.oracle != LLAMA_CPP:
            return 1
        path, n, total = self.folder / "layers.gguf", 1, n_layers(self.file)
        while n < total:
            rewrite(self.file, self.with_few_tokens(self.file, first_layers(self.file, n)), path)
            try:
                self.graph_in(path)
                return n
            except EngineError:
                n *= 2
            finally:
                path.unlink()
        return total


def holds_quantised(file: GgufFile) -> bool:
    """Return True if the file has weights of a type that the F32 twin changes."""
    return any(info.type.name not in KEPT for info in file.tensors.values())


def verdicts_of(
    opened: Opened, given: Sequence[Batch], *, whole: bool = False, kept: Kept | None = None
) -> list[Verdict]:
    """Return the verdicts on the first kind of answer that the engine offers: embeddings, logits,
    lists of likely tokens, or greedy tokens. whole, kept: as in `logits_of`."""
    context = replace(opened.context, given=tuple(given))
    levels = context.subject_info.levels
    if embeds(context):
        return embeddings_of(context, made_in_f32=kept is not None)
    if levels is None or "logits" in levels:
        return [logits_of(context, whole=whole, kept=kept)]
    if given:
        text = "an engine that shows no logits cannot be asked for single tokens"
        return [context.verdict(SUITE, "not-applicable", text)]
    if text := context.facts.no_choice:
        return [context.verdict(SUITE, "not-applicable", text)]
    names = ("logprobs",) if "logprobs" in levels else ("decode",)
    return list(run_suites(context, names))


def embeddings_of(context: Context, *, made_in_f32: bool) -> list[Verdict]:
    found = list(run_suites(context, ("embeddings",)))
    differs = made_in_f32 and any(verdict.status == "diverged" for verdict in found)
    if differs and (halves := explain_embeddings(context)):
        return [hidden_by_halves(context, halves)]
    return found


def hidden_by_halves(context: Context, halves: InHalves) -> Verdict:
    return context.verdict(SUITE, "not-compared", halves.why, {COMPUTED_IN: halves.kind})


class NotSteady(Exception):
    """Raised if an engine's own runs differ by more than the limit. No place in the model is then
    at fault."""


def logits_of(context: Context, *, whole: bool, kept: Kept | None) -> Verdict:
    """Compare the logits, and return the verdict. Raises NotSteady if the logits differ and a
    second run of the subject differs from its first. whole: True for the user's own model, whose
    rows must differ from each other and whose verdict names batches; kept: a function that returns
    the 16-bit type in which the engine keeps models made in F32."""
    request = Request(batches=context.batches)
    try:
        expected, actual = context.ask_both("evaluate", request)
        runs = expected, actual, np.concatenate(context.noise.logits)
        found = compare_runs(context, SUITE, context.batches, *runs, rows_differ=whole)
        shaky = unsteady(context.subject, request, actual) if found.status == "diverged" else None
        if shaky and shaky.apart > 2 * context.noise.relative:
            raise NotSteady(f"{context.subject.name} is not deterministic: {shaky}")
        if whole:
            return with_one_batch(context, context.batches, found, expected, actual)
        if found.status == "diverged" and kept is not None:
            detail = found.detail
            allowed = detail["allowed_relative"] * detail["largest_logit"]
            if halves := explain_by_halves(context, expected, actual, allowed, kept):
                return hidden_by_halves(context, halves)
        return found
    except NoAnswer as error:
        return verdict_for_no_answer(SUITE, context, error)
    except EngineError as error:
        return context.verdict(SUITE, "not-compared", str(error))


def worst_of(verdicts: Sequence[Verdict], oracle: str) -> SliceAnswer:
    """Return the worst verdict as an answer. Verdicts of "not-applicable" count only if all
    verdicts are. Excused lists do not count if other lists agree, because a list is empty where the
    text ends."""
    order = (1, 2, 3, 0)
    some = [verdict for verdict in verdicts if verdict.status != "not-applicable"]
    if any(v.suite == "logprobs" and v.status == "agreed" for v in some):
        some = [verdict for verdict in some if verdict.status != "excused"]
    worst = min(some or verdicts, key=lambda verdict: order.index(exit_code([verdict])))
    status, detail = worst.status, worst.detail
    if is_nobodys(status, detail, oracle):
        status = "not-compared"
    return SliceAnswer(
        status=status,
        summary=worst.summary,
        worst=float(detail.get("worst_relative_to_largest_logit", 0.0)),
        allowed=float(detail.get("allowed_relative", 0.0)),
        extent={name: detail[name] for name in OF_EXTENT if name in detail},
    )


def left_unanswered(error: NoAnswer, oracle: str) -> SliceAnswer:
    if not is_nobodys(error.status, error.detail, oracle):
        return SliceAnswer(status=error.status, summary=str(error))
    text, detail = str(error), error.detail
    if detail.get("kind") == REFUSED:  # neither engine is at fault
        text = f"{detail['engine']} does not load the probe model: {detail['where']}"
    return SliceAnswer(status="not-compared", summary=text)


def is_nobodys(status: Status, detail: Mapping[str, Any], oracle: str) -> bool:
    """Return True if the result does not accuse the subject: the oracle or both engines are at
    fault, or an engine refused an untrained model."""
    of_oracle = status != "agreed" and detail.get(ENGINE) == oracle
    refused = status == "diverged" and "question" in detail
    return of_oracle or refused or detail.get("at_fault") in ("oracle", "both")
