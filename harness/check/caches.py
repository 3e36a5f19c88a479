"""Caches of an engine under test that llama.cpp and an honest run of ours can have as well."""

from lockstep.engine.node import PLAIN
from lockstep.engine.ops.ggml.stored import STORED
from lockstep.harness.records import Settings

UNQUANTISED = ("F32", "F16", "BF16")  # values that llama.cpp attends to without flash attention


def why_not_followed(settings: Settings) -> str:
    """Return why the settings of an engine cannot be followed, as a clause behind its name; "" if
    they can. llama.cpp would be blamed for refusing them."""
    if unknown := sorted({settings.type_k, settings.type_v} - {*PLAIN, *STORED}):
        return (
            f"has a cache of type {unknown[0]}, which Lockstep cannot compute (known: "
            f"F32, F16, {', '.join(STORED)}); run the engine with one of these"
        )
    if settings.type_v not in UNQUANTISED and not settings.flash_attn:
        return (
            f"has a {settings.type_v} cache of values without flash attention, which "
            "llama.cpp cannot run; choose a different type, or flash attention"
        )
    return ""
