"""Checks that an engine uses replaced values. If a user's class ignores them, a correct engine
looks wrong at all later values."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from lockstep.harness.records import Evaluation, Request


class PutIn(dict[Any, Any]):
    """Replacement values by site; a dict, because engines may expect one."""

    read = False

    def __getitem__(self, key: Any) -> Any:
        self.read = True
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[Any]:
        self.read = True
        return super().__iter__()

    def __len__(self) -> int:
        self.read = True
        return super().__len__()

    def __contains__(self, key: object) -> bool:
        self.read = True
        return super().__contains__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        self.read = True
        return super().get(key, default)

    def pop(self, *args: Any) -> Any:
        self.read = True
        return super().pop(*args)

    def __eq__(self, other: object) -> bool:
        self.read = True
        return super().__eq__(other)

    def copy(self) -> Any:
        self.read = True
        return super().copy()

    def items(self) -> Any:
        self.read = True
        return super().items()

    def keys(self) -> Any:
        self.read = True
        return super().keys()

    def values(self) -> Any:
        self.read = True
        return super().values()

    @property
    def is_ignored(self) -> bool:
        return not self.read and super().__len__() > 0


def watch_values(args: tuple[Any, ...]) -> tuple[PutIn, tuple[Any, ...]]:
    """Return the replacement values of a run's request in a PutIn, and the arguments with this
    PutIn in the request."""
    if not args or not isinstance(args[0], Request):
        return PutIn(), args
    given = PutIn(args[0].replace)
    return given, (replace(args[0], replace=given), *args[1:])


def comes_to_the_same(request: Request, found: Evaluation, own: Evaluation) -> bool:
    """Return True if two runs agree bit for bit in outputs and shown values, although a replaced
    value differs. `own` is the answer without replacement."""
    return is_same(found, own) and is_other(request, own)


def is_same(a: Evaluation, b: Evaluation) -> bool:
    """Return True if the outputs and the shown values agree bit for bit."""
    first, second = (
        {**dict(enumerate(e.logits)), **(e.trace.values() if e.trace else {})} for e in (a, b)
    )
    return first.keys() == second.keys() and all(
        first[key].tobytes() == second[key].tobytes() for key in first
    )


def is_other(request: Request, own: Evaluation) -> bool:
    """Return True if a replaced value differs from the engine's own value, or if the engine does
    not show its own value."""
    shown = own.trace.values() if own.trace else {}
    return any(
        site not in shown or shown[site].tobytes() != value.tobytes()
        for site, value in request.replace.items()
    )
