"""Models that many engines are tested on: the oracle's answers and honest runs are cached."""

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from lockstep.harness.asking.session import Session
from lockstep.harness.catalogue.memory import remember
from lockstep.harness.catalogue.views import LOGITS, View, seen_through
from lockstep.harness.check.check import REFERENCE, Opened, Plan, describe_engine, open_plan
from lockstep.harness.context.suite import Context
from lockstep.harness.records import Settings

Start = Callable[[Path, Settings], Session]  # starts the engine under test on a model
Progress = Callable[[str], None]
LARGEST = 1 << 24  # bytes of a model that is kept


class OpenedForOne(Opened):
    """The opened engines of one test. Closing it ends the processes of both engines. The oracle's
    answers are cached, so the oracle starts again only for a new question."""

    def close(self) -> None:
        self.context.subject.close()
        self.context.llama_cpp.close()


@dataclass(kw_only=True)
class KnownModels:
    """Models on disk. folder: the folder of their files."""

    folder: Path
    known: dict[str, Opened] = field(default_factory=dict)
    asked: int = 0  # number of models on which engines were opened

    def opening(self, start: Start, view: View = LOGITS) -> Callable[[Plan, Progress], Opened]:
        """Return a replacement for `open_plan` that opens this engine as the engine under test,
        seen through the view."""

        def open_one(plan: Plan, progress: Progress) -> Opened:
            self.asked += 1
            small = plan.model.stat().st_size <= LARGEST
            base = self.keep_open(plan, progress) if small else opened_alone(plan, progress)
            kind = OpenedForOne if small else Opened
            session = seen_through(view, start(plan.subject_model, base.context.settings))
            return with_engine(base, session, plan, kind)

        return open_one

    def keep_open(self, plan: Plan, progress: Progress) -> Opened:
        key = hashlib.sha256(plan.model.read_bytes()).hexdigest()
        if key not in self.known:
            copy = self.folder / f"{key}.gguf"  # a copy, because the caller's file may be deleted
            shutil.copy(plan.model, copy)
            opened = opened_alone(replace(plan, model=copy), progress)
            remember(opened.context)
            self.known[key] = opened
        return self.known[key]

    def whole(self, plan: Plan) -> Context:
        """Return the context of the whole model, which is already open with cached answers."""
        return self.keep_open(plan, lambda _: None).context

    def close(self) -> None:
        for opened in self.known.values():
            opened.close()


def opened_alone(plan: Plan, progress: Progress) -> Opened:
    """Open the plan with our own engine instead of the engine under test."""
    return open_plan(replace(plan, engine=REFERENCE, subject_model=plan.model), progress)


def with_engine(base: Opened, subject: Session, plan: Plan, kind: type[Opened]) -> Opened:
    info = describe_engine(subject, under_test=True)
    context = base.context.with_subject(subject, plan.subject_model, info)
    context.named = plan.by_name and bool(plan.suites)
    return kind(context=context, engines=(base.engines[0], info))
