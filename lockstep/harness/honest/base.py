"""The contract of an honest engine of another design: the reference with other arithmetic."""

from typing import ClassVar

from lockstep.harness.adapters.reference import Reference


class HonestEngine(Reference):
    """`shows_on` names a built-in model with the op that it computes otherwise."""

    group: ClassVar[str] = "honest"
    design: ClassVar[str]
    shows_on: ClassVar[str] = "f32"
