"""Probe models, which are made from the user's model for one question to both engines, and then
deleted."""

import errno
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from lockstep.engine.errors import EngineError, Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.bisect.bisection import Bisection
from lockstep.harness.blackbox.asking import (
    Make,
    NotSteady,
    SliceAnswer,
    SliceAsker,
    left_unanswered,
)
from lockstep.harness.blackbox.few_tokens import OF_TOKENS
from lockstep.harness.blackbox.offers import why_not_asked
from lockstep.harness.blackbox.parts import EMBEDDING
from lockstep.harness.blackbox.rewriting import Recipe
from lockstep.harness.blackbox.slices import n_layers
from lockstep.harness.check.check import BadInput, Opened, Plan, open_plan
from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.records import Settings, Verdict

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
Found = TypeVar("Found")
CHOICES = "decode"  # name of the suite for engines that choose tokens
LARGEST_TABLE = 1 << 26  # numbers of an embedding table that cannot be cut; both engines read it
WHOLE_TABLES = 1 << 25  # 128 MB: numbers of all tables that could be cut but are kept if ids matter


@contextmanager
def asking_about(plan: Plan, context: Context) -> Iterator[SliceAsker]:
    """Yield an asker with a folder for probe models. The folder is deleted at the end."""
    with TemporaryDirectory(prefix="lockstep-") as folder:
        asker = SliceAsker(
            plan=plan,
            folder=Path(folder),
            progress=context.progress,
            opening=context.opening or open_plan,
            rounding=context.rounding,
        )
        with closing(asker):
            yield asker


def bisect_on_made(
    plan: Plan, context: Context, work: Callable[[SliceAsker], Bisection | None]
) -> Bisection | None:
    """Return the result of `work` on probe models. Return None if it finds nothing, if no model can
    be made, or if an engine gives no answer."""
    with suppress(BadInput, NoAnswer, EngineError), asking_about(plan, context) as asker:
        return work(asker)
    return None


def on_made_models(
    plan: Plan, context: Context, suite: str, work: Callable[[SliceAsker], Iterator[Verdict]]
) -> Iterator[Verdict]:
    """Yield the verdicts of `work` on probe models. If probe models cannot be made or tested, a
    verdict says so."""
    inner = replace(plan, suites=(), by_name=False)
    with asking_about(inner, context) as asker:
        try:
            yield from work(asker)
        except NotSteady as error:
            detail = {"at_fault": "subject", "kind": "not-deterministic"}
            key = (suite, "not-deterministic")
            yield context.verdict(suite, "diverged", str(error), detail, key)
        except EngineError as error:
            yield context.verdict(suite, "not-applicable", str(error))
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            place = f"{asker.folder}: {error.strerror}"
            text = f"a probe model cannot be written to {place}"
            yield context.verdict(suite, "not-applicable", f"{text}; set TMPDIR to another folder")


def open_first(
    asker: SliceAsker, makes: Iterable[Make], settings: Settings | None = None
) -> Opened | None:
    """Open both engines on the first probe model that both accept; return None if there is none."""
    for make in makes:
        made = asker.plan_for_made(make)
        with suppress(NoAnswer, BadInput):
            return asker.open(replace(made, settings=settings or made.settings))
    return None


def judge_logits(
    asker: SliceAsker,
    make: Make,
    judge: Callable[[Opened], Found],
    left: Callable[[SliceAnswer], Found],
) -> Found:
    """Return `judge`'s result for both engines on a probe model. left: a function that returns the
    result if the model cannot be made, or if an engine does not answer."""
    try:
        opened = asker.open(replace(asker.plan_for_made(make), suites=("logits",)))
    except NoAnswer as error:
        return left(left_unanswered(error, asker.plan.oracle))
    except (BadInput, Unsupported) as error:
        return left(SliceAnswer(status="not-compared", summary=str(error)))
    try:
        return judge(opened)
    except NoAnswer as error:
        return left(left_unanswered(error, asker.plan.oracle))
    except EngineError as error:
        return left(SliceAnswer(status="not-compared", summary=str(error)))
    finally:
        opened.close()


# --- engines that choose tokens -----------------------------------------------------------------


def asked_to_choose(
    plan: Plan,
    context: Context,
    words: str,
    recipe_of: Callable[[GgufFile], Recipe],
    said: Callable[[Context, Context], Iterator[Verdict]],
    *,
    every_id: bool = False,
    level: str = "greedy",
    suite: str = CHOICES,
) -> Iterator[Verdict]:
    """Ask for choices of tokens on a probe model, and yield the verdicts. An engine's refusal of an
    untrained model is not counted against it. words: the progress message; recipe_of: makes the
    recipe of the probe model; said: yields verdicts, given the user's context and the probe model's
    context; every_id: True to keep all ids of the user's model if its tables are small enough."""
    levels = context.subject_info.levels
    if (levels is not None and level not in levels) or context.facts.decoder_start is not None:
        return

    def work(asker: SliceAsker) -> Iterator[Verdict]:
        table = asker.file.tensors.get(EMBEDDING)
        if table is None:
            return
        whole = every_id and size_of_tables(asker.file) <= WHOLE_TABLES

        def make(file: GgufFile) -> Recipe:
            recipe = recipe_of(file)
            return recipe if whole else asker.with_few_tokens(file, recipe)

        n_layers(asker.file)  # raises Unsupported if the model cannot be sliced
        if prod(table.ne) > LARGEST_TABLE and not make(asker.file).rows:
            return
        context.progress(words)
        opened = open_first(asker, (make,))
        if opened is None:
            return
        with closing(opened):
            try:
                yield from said(context, opened.context)
            except NoAnswer as error:
                text = f"{words}, on a probe model: {error}"
                yield context.verdict(suite, "not-applicable", text)

    if not why_not_asked(context.subject.name, levels, (level,)):
        yield from on_made_models(plan, context, suite, work)


def size_of_tables(file: GgufFile) -> int:
    return sum(prod(file.tensors[name].ne) for name in OF_TOKENS if name in file.tensors)
