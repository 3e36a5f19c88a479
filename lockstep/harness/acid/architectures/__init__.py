"""One file for each architecture that acid models are written of."""

from lockstep.harness.acid.architectures.base import Architecture
from lockstep.harness.acid.architectures.gemma3 import Gemma3
from lockstep.harness.acid.architectures.gpt2 import Gpt2
from lockstep.harness.acid.architectures.llama import Llama
from lockstep.harness.acid.architectures.llama_moe import LlamaMoe
from lockstep.harness.acid.architectures.qwen3 import Qwen3

ARCHITECTURES: dict[str, Architecture] = {
    arch.name: arch for arch in (Llama(), LlamaMoe(), Qwen3(), Gpt2(), Gemma3())
}


def architecture_named(name: str) -> Architecture:
    """Raises KeyError for one that no acid model is written of."""
    return ARCHITECTURES[name]
