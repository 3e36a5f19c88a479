"""Tests with several threads, for an engine whose other answers do not already test them."""

from collections.abc import Collection, Iterator

from lockstep.harness.context.suite import Context
from lockstep.harness.records import Verdict


def several_threads(
    context: Context, asked: str, besides: Collection[str] = ()
) -> Iterator[Verdict]:
    """Test several threads on a small model, which answers quickly
    (harness.blackbox.several_threads). besides: levels whose questions already test several
    threads; an engine with one of them is not tested here."""
    if context.facts.is_small and not {*besides} & {*(context.subject_info.levels or besides)}:
        yield from context.asked_on_made_models(asked)
