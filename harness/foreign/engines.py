"""Engines from public packages that Lockstep can test, and the packages of each engine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lockstep.engine.choices import choices
from lockstep.engine.errors import Unsupported

PROGRAMS = Path(__file__).parent / "programs"


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """An engine with its pinned packages, and the program that answers for it in the protocol."""

    name: str
    kind: Literal["python", "node"]
    packages: tuple[str, ...]  # the engine's own package is first
    module: str  # its import shows that the environment is complete
    program: str
    can: str  # description of the questions that the engine answers
    size: str  # size of the download
    needs: str = ""  # other requirements on the machine
    takes: str = ""  # required text after the name and a colon, such as "FOLDER"

    @property
    def version(self) -> str:
        """Return the version of the engine's own package."""
        return self.packages[0].rpartition("=" if self.kind == "python" else "@")[2]


ENGINES: dict[str, Foreign] = {
    engine.name: engine
    for engine in (
        Foreign(
            name="transformers",
            kind="python",
            packages=(
                *("transformers==5.23.0", "torch==2.13.0", "gguf==0.19.0", "accelerate>=1"),
                *("sentencepiece>=0.2", "numpy>=1.26", "peft==0.21.2"),
            ),
            module="transformers, torch, gguf, peft",
            program="transformers_torch.py",
            can="text, weights, greedy tokens, logits, tensors of every layer, LoRA, samplers",
            size="1.2 GB; on Linux several GB more if pip finds no CPU-only torch",
        ),
        Foreign(
            name="originals",
            kind="python",
            packages=(
                *("transformers==5.23.0", "torch==2.13.0", "sentence-transformers==6.2.0"),
                *("sentencepiece>=0.2", "numpy>=1.26"),
            ),
            module="transformers, torch, sentence_transformers",
            program="checkpoint_torch.py",
            can="a checkpoint of Hugging Face: logits, embeddings, tensors of every layer",
            size="1.2 GB; on Linux several GB more if pip finds no CPU-only torch",
            takes="FOLDER",
        ),
        Foreign(
            name="tinygrad",
            kind="python",
            packages=("tinygrad==0.14.0", "numpy>=1.26"),
            module="tinygrad",
            program="tinygrad_engine.py",
            can="keys, weights, greedy tokens, logits, tensors of every layer",
            size="25 MB",
            needs="clang or libLLVM, when it runs",
        ),
        Foreign(
            name="mlx",
            kind="python",
            packages=("mlx[cpu]==0.32.4", "mlx-lm==0.32.2", "numpy>=1.26"),
            module="mlx.core, mlx_lm",
            program="mlx_engine.py",
            can="keys, weights, greedy tokens, logits, tensors of every layer",
            size="350 MB",
            needs="a C++ compiler, when it runs",
        ),
        Foreign(
            name="ctransformers",
            kind="python",
            packages=("ctransformers==0.2.27", "numpy>=1.26"),
            module="ctransformers",
            program="ctransformers_engine.py",
            can="text, greedy tokens, logits; a ggml of 2023, llama models only",
            size="40 MB",
        ),
        Foreign(
            name="ik-llama-cpp",
            kind="python",
            packages=("ik-llama-cpp-python==0.1.5", "numpy>=1.26"),
            module="ik_llama_cpp",
            program="ik_llama_cpp_engine.py",
            can="text, greedy tokens, logits, samplers; a fork of llama.cpp",
            size="40 MB",
        ),
        Foreign(
            name="gpt4all",
            kind="python",
            packages=("gpt4all==2.8.2", "numpy>=1.26"),
            module="gpt4all",
            program="gpt4all_engine.py",
            can="the text that follows a prompt",
            size="130 MB",
        ),
        Foreign(
            name="xllamacpp",
            kind="python",
            packages=("xllamacpp==2026.10.11549", "numpy>=1.26"),
            module="xllamacpp",
            program="xllamacpp_engine.py",
            can="text, greedy tokens, LoRA; llama.cpp's server in a Python process",
            size="50 MB",
        ),
        Foreign(
            name="mistralrs",
            kind="python",
            packages=("mistralrs==0.9.5", "numpy>=1.26", "gguf==0.19.0"),
            module="mistralrs, gguf",
            program="mistralrs_engine.py",
            can="text, the text that follows a prompt, LoRA",
            size="45 MB",
        ),
        Foreign(
            name="huggingface-gguf",
            kind="node",
            packages=("@huggingface/gguf@0.4.6",),
            module="@huggingface/gguf",
            program="huggingface_gguf.mjs",
            can="keys and tensor table",
            size="4 MB",
        ),
        Foreign(
            name="hyllama",
            kind="node",
            packages=("hyllama@0.2.2",),
            module="hyllama",
            program="hyllama_engine.mjs",
            can="keys",
            size="1 MB",
        ),
        Foreign(
            name="node-llama-cpp",
            kind="node",
            packages=("node-llama-cpp@3.22.1",),
            module="node-llama-cpp",
            program="node_llama_cpp.mjs",
            can="keys, text, greedy tokens, logits",
            size="720 MB",
        ),
    )
}

# engines that were tried in vain, with the result; `engine add` reports this instead of building
NOT_RUNNING: dict[str, str] = {}


def split_name(engine: str) -> tuple[str, str] | None:
    """Return the name in ENGINES and the argument after the colon. Return None for other
    engines."""
    name, colon, argument = engine.partition(":")
    if name not in ENGINES or (colon and not ENGINES[name].takes):
        return None
    return name, argument


def has_own_model(engine: str) -> bool:
    """Return True for an engine that runs the model that its name contains, and ignores the model
    file."""
    found = split_name(engine)
    return found is not None and bool(ENGINES[found[0]].takes)


def engine_named(name: str) -> Foreign:
    """Return the engine. Raises Unsupported, with the known names or the reason why the engine
    cannot be tested."""
    if name in NOT_RUNNING:
        raise Unsupported(f"{name} cannot be tested: {NOT_RUNNING[name]}")
    if name not in ENGINES:
        raise Unsupported(f"no engine named {name!r} {choices(name, ENGINES)}")
    return ENGINES[name]
