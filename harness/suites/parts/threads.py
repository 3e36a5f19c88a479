"""Answers of several threads, for an engine whose other answers do not reveal their effects."""

from collections.abc import Collection, Iterator

from lockstep.harness.context.suite import Context
from lockstep.harness.records import Verdict


def several_threads(
    context: Context, asked: str, besides: Collection[str] = ()
) -> Iterator[Verdict]:
    """Check several threads on a small model, which answers quickly
    (harness.blackbox.answers_of_threads). besides: alternative levels, if an engine has one."""
    if context.facts.is_small and not {*besides} & {*(context.subject_info.levels or besides)}:
        yield from context.asked_on_made_models(asked)
