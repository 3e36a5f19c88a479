"""The interface of a wrong engine: the reference with one realistic mistake."""

from typing import Any, ClassVar, Self

from lockstep.harness.adapters.reference import Reference


class Mutant(Reference):
    """A wrong engine.

    `shows_on` names the model that shows the mistake: a built-in model, `arch:NAME` for the model
    of `synth --arch NAME`, or `arch:NAME:TYPE` for that model with matrices of this type. `site`
    and `layer` are the place that a bisection under `--settings exact` must name first. If no op is
    wrong, `site` is the suite that must diverge first.
    """

    mistake: ClassVar[str]
    group: ClassVar[str] = ""  # reading, formats, norms, rope, ...; `family` is the registry
    effect: ClassVar[str] = ""  # what a user sees of it, in words
    source: ClassVar[str] = ""  # a public thread, "llama.cpp #8676", where it really happened
    shows_on: ClassVar[str] = "f32"
    site: ClassVar[str]
    layer: ClassVar[int | None] = 0
    first_of_all: ClassVar[bool] = False  # also of a plain `selftest`
    moves_logits: ClassVar[bool] = True  # if not, no patch can confirm what the trace finds
    remembers: ClassVar[bool] = False  # answers depend on what was asked before

    @classmethod
    def add_fault(cls, name: str, mistake: str, effect: str = "", **changed: Any) -> type[Self]:
        """Register an engine with these attributes and methods."""
        held = {"__module__": cls.__module__, "mistake": mistake, **changed}
        if effect:
            held["effect"] = effect
        return type(name, (cls,), held, name=f"mutant:{name}")
