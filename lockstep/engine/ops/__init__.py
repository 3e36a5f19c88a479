"""Numerics, three times: `reference` is read, `mirror` adds ggml's roundings, `fast` is run.

All have the methods of `reference.Reference`, with the same arguments, shapes and dtypes.
"""

from lockstep.engine.errors import Unsupported
from lockstep.engine.ops.reference import ReferenceOps


def ops_named(name: str) -> ReferenceOps:
    """The implementation called `reference`, `mirror` or `fast`; compiled code is imported late."""
    if name == "reference":
        return ReferenceOps()
    if name == "mirror":
        from lockstep.engine.ops.mirror import Mirror

        return Mirror()
    if name == "fast":
        from lockstep.engine.ops.fast.ops import Fast

        return Fast()
    raise Unsupported(f"no ops named {name!r} (known: fast, mirror, reference)")
