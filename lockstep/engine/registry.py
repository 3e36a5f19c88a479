"""The one way to extend the project: subclass a family base in a new file."""

import importlib
import pkgutil
import re
from functools import cache
from typing import Any, ClassVar, Self

from lockstep.engine.choices import choices
from lockstep.engine.errors import Unsupported


class Registered:
    """A direct child opens a family, whose members lie beside it; each named class below it joins.

    That some members are there says nothing of the others: whoever needs one imported it.
    """

    name: ClassVar[str]
    members: ClassVar[str]  # the package that they are in, if it is another than the family's own
    family: ClassVar[dict[str, type[Any]]]

    def __init_subclass__(cls, *, name: str | None = None) -> None:
        if Registered in cls.__bases__:
            cls.family = {}
            cls.members = cls.__dict__.get("members") or cls.__module__.rpartition(".")[0]
        elif name is not None:
            if name in cls.family:
                raise TypeError(f"{name!r} is already {cls.family[name].__module__}")
            cls.name = name
            cls.family[name] = cls

    @classmethod
    def member(cls, name: str) -> type[Self]:
        if name not in cls.family:
            import_members(cls.members)
        if name not in cls.family:
            known = choices(name, sorted(cls.family))
            what = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", cls.__name__).lower()
            raise Unsupported(f"no {what} named {name!r} {known}")
        return cls.family[name]


@cache
def import_members(package: str) -> None:
    """Import every module of `package`, so that its classes register; once, as calls of ops ask."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")
