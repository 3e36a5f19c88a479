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
    group: ClassVar[str] = ""  # reading, formats, norms, rope, ...; `family` names the registry
    effect: ClassVar[str] = ""  # the effect for a user
    source: ClassVar[str] = ""  # a public thread about the real bug, such as "llama.cpp #8676"
    shows_on: ClassVar[str] = "f32"
    site: ClassVar[str]
    layer: ClassVar[int | None] = 0
    first_of_all: ClassVar[bool] = False  # True: a plain `selftest` includes it
    moves_logits: ClassVar[bool] = True  # False: no patch can confirm what the trace finds
    remembers: ClassVar[bool] = False  # True: answers depend on earlier questions

    @classmethod
    def add_fault(cls, name: str, mistake: str, effect: str = "", **changed: Any) -> type[Self]:
        """Register an engine with these attributes and methods."""
        held = {"__module__": cls.__module__, "mistake": mistake, **changed}
        if effect:
            held["effect"] = effect
        return type(name, (cls,), held, name=f"mutant:{name}")
