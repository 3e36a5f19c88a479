"""Lockstep: conformance and differential testing for GGUF language-model engines.

The public names are those of `lockstep.api`; they are imported when they are first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.api import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if name[:1].isupper() or name == "check":  # the others are packages, which import may look for
        from lockstep import api

        if name in api.__all__:
            return getattr(api, name)
    raise AttributeError(f"module 'lockstep' has no attribute {name!r}")


def __dir__() -> list[str]:
    from lockstep import api

    return [*globals(), *api.__all__]
