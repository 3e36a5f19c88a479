"""Numerics, three times: `reference` is read, `mirror` adds ggml's roundings, `fast` is run.

All have the methods of `reference.Reference`, with the same arguments, shapes and dtypes.
"""

from engine.errors import Unsupported
from engine.ops.reference import Reference


def ops_named(name: str) -> Reference:
    """The implementation called `reference`, `mirror` or `fast`; compiled code is imported late."""
    if name == "reference":
        return Reference()
    if name == "mirror":
        from engine.ops.mirror import Mirror

        return Mirror()
    if name == "fast":
        from engine.ops.fast import Fast

        return Fast()
    raise Unsupported(f"no ops named {name!r} (known: fast, mirror, reference)")
