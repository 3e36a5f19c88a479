"""Architectures of acid models, one in each file."""

from lockstep.harness.acid.architectures.base import AcidArchitecture
from lockstep.harness.acid.architectures.gemma3 import AcidGemma3
from lockstep.harness.acid.architectures.gpt2 import AcidGpt2
from lockstep.harness.acid.architectures.llama import AcidLlama
from lockstep.harness.acid.architectures.llama_moe import LlamaMoe
from lockstep.harness.acid.architectures.qwen3 import AcidQwen3

ARCHITECTURES: dict[str, AcidArchitecture] = {
    arch.name: arch for arch in (AcidLlama(), LlamaMoe(), AcidQwen3(), AcidGpt2(), AcidGemma3())
}


def architecture_named(name: str) -> AcidArchitecture:
    """Return the acid architecture with this name. Raises KeyError if there is none."""
    return ARCHITECTURES[name]
