"""All acid models: one of each type for llama, and one in F32 for each other architecture."""

from collections.abc import Iterator

from lockstep.harness.acid.architectures import ARCHITECTURES
from lockstep.harness.acid.write import TYPES

FIRST = "F32"
ALL_TYPES_OF = "llama"


def every(arch: str | None = None) -> Iterator[tuple[str, str]]:
    """Yield the architecture and the type of each acid model, F32 models first. arch: yield only
    this architecture."""
    chosen = [each for each in ARCHITECTURES if arch in (None, each)]
    yield from ((each, FIRST) for each in chosen)
    if ALL_TYPES_OF in chosen:
        yield from ((ALL_TYPES_OF, kind) for kind in TYPES if kind != FIRST)
