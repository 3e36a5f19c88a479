"""The interface of honest engines with another design: the reference engine with other
arithmetic."""

from typing import Any, ClassVar, Self

from lockstep.harness.adapters.reference import Reference


class HonestEngine(Reference):
    """An honest engine. shows_on: the name of a built-in model that uses the op that this engine
    computes differently. views: the views in which the engine counts as honest."""

    group: ClassVar[str] = "honest"
    design: ClassVar[str]
    shows_on: ClassVar[str] = "f32"
    views: ClassVar[tuple[str, ...]] = ("tensors", "layers", "logits", "top-k", "text")

    @classmethod
    def add_design(cls, name: str, design: str, **changed: Any) -> type[Self]:
        """Register an engine. `changed` holds its ops and other attributes."""
        frame = {"__module__": changed["ops"].__module__, "design": design, **changed}
        return type(name, (cls,), frame, name=f"honest:{name}")
