"""The contract of a wrong engine: the reference with exactly one mistake that people really make."""

from typing import ClassVar

from harness.adapters.reference import Reference


class Mutant(Reference):
    """`model` names the built-in model that shows the mistake; `site` and `layer` the place where a
    bisection under `--settings exact` must find it first; `op` is ggml's name for it."""

    mistake: ClassVar[str]
    model: ClassVar[str] = "f32"
    site: ClassVar[str]
    layer: ClassVar[int | None] = 0
