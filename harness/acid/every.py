"""The acid models that exist: for llama one of each type, for other architectures one in F32."""

from collections.abc import Iterator

from lockstep.harness.acid.architectures import ARCHITECTURES
from lockstep.harness.acid.write import TYPES

FIRST = "F32"
ALL_TYPES_OF = "llama"


def every(arch: str | None = None) -> Iterator[tuple[str, str]]:
    """Yield architecture and type, F32 models first. arch: only this architecture."""
    chosen = [each for each in ARCHITECTURES if arch in (None, each)]
    yield from ((each, FIRST) for each in chosen)
    if ALL_TYPES_OF in chosen:
        yield from ((ALL_TYPES_OF, kind) for kind in TYPES if kind != FIRST)
