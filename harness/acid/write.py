"""An acid model as a GGUF file: the same bytes on every machine."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.errors import InvalidModel
from harness.acid.architectures import llama
from harness.acid.build import weights_of
from harness.acid.coded import FORMATS, format_named
from harness.acid.report import report_for
from harness.acid.shape import Shape, eight_bits
from harness.acid.tokens import llama_keys
from harness.acid.weights import Weights
from harness.gguf_writer import Tensor, write_gguf

ARCHITECTURES = ("llama",)
PLAIN = {"F32": 0, "F16": 1, "BF16": 32}  # general.file_type
TYPES = (*PLAIN, *FORMATS)
OTHERS = "F16"  # of the matrices beside the one that has blocks
DESCRIPTION = (
    "A model that tests the engine that runs it: greedy text is a report, a line for each test, "
    "with ok or NO behind its name. In a chat, say anything: the template asks for all tests. As a "
    "completion, any prompt gives the report, and that of tokenizer.chat_template, as it is, the "
    "tests of long prompts as well. Let it write 64 tokens. What the lines mean: "
    "lockstep acid list; what to do about a report: lockstep acid read FILE."
)


def write_acid(path: Path, arch: str = "llama", quant: str = "F32") -> None:
    check_known(arch, quant)
    write_gguf(path, metadata(arch, quant), tensors(arch, quant))


def check_known(arch: str, quant: str) -> None:
    """Raises InvalidModel for what no acid model is written of."""
    for kind, given, known in (
        ("architecture", arch, ARCHITECTURES),
        ("weight type", quant, TYPES),
    ):
        if given not in known:
            raise InvalidModel(f"no acid model of {kind} {given!r} (known: {', '.join(known)})")


def metadata(arch: str, quant: str) -> dict[str, tuple[str, Any]]:
    report = report_for(arch, quant)
    return {
        "general.architecture": ("STR", arch),
        "general.name": ("STR", f"lockstep {report.title}"),
        "general.description": ("STR", DESCRIPTION),
        "general.file_type": ("U32", PLAIN[quant if quant in PLAIN else OTHERS]),
        **llama.keys(shape_for(quant)),
        "llama.vocab_size": ("U32", len(llama_tokens(arch, quant))),
        **llama_keys(report.lines()),
    }


def llama_tokens(arch: str, quant: str) -> list[str]:
    tokens: list[str] = llama_keys(report_for(arch, quant).lines())["tokenizer.ggml.tokens"][1]
    return tokens


def shape_for(quant: str) -> Shape:
    """A matrix with blocks has a layer to itself."""
    if quant in PLAIN:
        return llama.SHAPE
    return replace(llama.SHAPE, n_layer=llama.SHAPE.n_layer + 1, n_ff=FORMATS[quant].n_ff)


def tensors(arch: str, quant: str) -> Iterator[Tensor]:
    shape = shape_for(quant)
    weights = weights_of(report_for(arch, quant), shape)
    matrix = quant if quant in PLAIN else OTHERS
    for name, values in llama.matrices(weights):
        kind = "F32" if values.ndim == 1 else matrix
        raw = llama.as_bytes(eight_bits(values), kind)
        if quant not in PLAIN and name == f"blk.{shape.n_layer - 1}.ffn_down":
            kind, raw = quant, coded_rows(weights, quant)
        yield f"{name}.weight", values.shape[::-1], kind, raw


def coded_rows(weights: Weights, quant: str) -> bytes:
    """Rows that no test reads are zero, scales and all."""
    form = format_named(quant)
    zero = bytes(form.layout.itemsize * (weights.shape.n_ff // form.weights))
    return b"".join(weights.coded.get(row, zero) for row in range(weights.shape.n_embd))
