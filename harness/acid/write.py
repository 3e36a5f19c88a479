"""An acid model as a GGUF file, with the same bytes on every machine."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.engine.errors import InvalidModel
from lockstep.harness.acid.architectures import ARCHITECTURES as ARCHITECTURES
from lockstep.harness.acid.architectures import architecture_named
from lockstep.harness.acid.architectures.base import PLAIN as PLAIN
from lockstep.harness.acid.build import weights_of
from lockstep.harness.acid.coded import FORMATS, format_named
from lockstep.harness.acid.report import report_for
from lockstep.harness.acid.shape import F64, Shape, eight_bits
from lockstep.harness.acid.weights import AcidWeights
from lockstep.harness.synth.gguf_writer import Tensor, write_gguf

TYPES = (*PLAIN, *FORMATS)
OTHERS = "F16"  # type of the matrices without blocks
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
    """Check that there is an acid model of this architecture and type. Raises InvalidModel if
    not."""
    for kind, given, known in (
        ("architecture", arch, ARCHITECTURES),
        ("weight type", quant, TYPES),
    ):
        if given not in known:
            raise InvalidModel(f"no acid model of {kind} {given!r} (known: {', '.join(known)})")
    if quant not in (types := ARCHITECTURES[arch].types):
        raise InvalidModel(f"no acid model of {arch} with {quant} (known: {', '.join(types)})")


def metadata(arch: str, quant: str) -> dict[str, tuple[str, Any]]:
    report, own = report_for(arch, quant), architecture_named(arch)
    tokens = own.vocabulary.keys(report.lines())
    return {
        "general.architecture": ("STR", own.gguf),
        "general.name": ("STR", f"lockstep {report.title}"),
        "general.description": ("STR", DESCRIPTION),
        "general.file_type": ("U32", PLAIN[quant if quant in PLAIN else OTHERS]),
        **own.metadata(shape_for(arch, quant)),
        f"{own.gguf}.vocab_size": ("U32", len(tokens["tokenizer.ggml.tokens"][1])),
        **tokens,
    }


def shape_for(arch: str, quant: str) -> Shape:
    """Return the shape. A matrix with blocks gets a separate last layer."""
    shape = architecture_named(arch).shape
    if quant in PLAIN:
        return shape
    return replace(shape, n_layer=shape.n_layer + 1, n_ff=FORMATS[quant].n_ff)


def tensors(arch: str, quant: str) -> Iterator[Tensor]:
    shape, own = shape_for(arch, quant), architecture_named(arch)
    weights = weights_of(report_for(arch, quant), own, shape)
    matrix = quant if quant in PLAIN else OTHERS
    for name, values in own.tensors(weights):
        kind = "F32" if values.ndim == 1 else matrix
        raw = as_bytes(eight_bits(values), kind)
        if quant not in PLAIN and name == f"blk.{shape.n_layer - 1}.ffn_down.weight":
            kind, raw = quant, coded_rows(weights, quant)
        yield name, values.shape[::-1], kind, raw


def as_bytes(values: F64, kind: str) -> bytes:
    """Return the bytes of values with at most eight significant bits, which need no rounding."""
    if kind == "BF16":
        raw = np.ascontiguousarray(values, "<f4").view("<u4") >> 16
        return raw.astype("<u2").tobytes()
    return np.ascontiguousarray(values, {"F32": "<f4", "F16": "<f2"}[kind]).tobytes()


def coded_rows(weights: AcidWeights, quant: str) -> bytes:
    """Return the rows of a matrix with blocks. Rows that no test reads are all zero, including
    their scales."""
    form = format_named(quant)
    zero = bytes(form.layout.itemsize * (weights.shape.n_ff // form.weights))
    return b"".join(weights.coded.get(row, zero) for row in range(weights.shape.n_embd))
