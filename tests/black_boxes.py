"""Helpers for bisections of engines that show only logits, and files with one wrong tensor."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.quants.base import WeightFormat
from lockstep.harness.blackbox.asking import SliceAsker
from lockstep.harness.blackbox.bisection import BlackBoxBisection, bisect_black_box
from lockstep.harness.blackbox.in_check import questions
from lockstep.harness.catalogue.models import with_keys
from lockstep.harness.check.check import Plan, open_plan, run_suites
from lockstep.harness.records import Verdict
from lockstep.harness.shadow.models import make_variant
from lockstep.harness.shadow.models import open_for_variants as llama_cpp_opened
from lockstep.harness.synth.any_arch import variant_named
from tests.harness.check.test_check import plan_for

# function that changes a tensor's bytes
Wrong = Callable[[NDArray[np.uint8], type[WeightFormat]], None]


def asker_of(path: Path, folder: Path, **changes: Any) -> SliceAsker:
    plan: Plan = plan_for(path, n_tokens=8, suites=("logits",), **changes)
    folder.mkdir(exist_ok=True)
    return SliceAsker(plan=plan, folder=folder, progress=lambda _: None)


def bisected(path: Path, folder: Path, **changes: Any) -> BlackBoxBisection:
    asker = asker_of(path, folder, **changes)
    try:
        return bisect_black_box(asker)
    finally:
        asker.close()


def with_made_models(plan: Plan) -> list[Verdict]:
    """Run the suites of `check`, including those on models made from the user's model."""
    opened = open_plan(plan, lambda _: None)
    opened.context.on_made_models = questions(plan)
    try:
        return list(run_suites(opened.context, plan.suites))
    finally:
        opened.close()


def faults(found: BlackBoxBisection) -> dict[int | None, list[str]]:
    """Return the names of the faulty parts, by layer."""
    return {row.layer: [part.name for part in row.parts] for row in found.guilty}


def wrong_tensors(found: BlackBoxBisection) -> set[str]:
    return {name for look in found.lenses for name in look.tensors}


def copy_with(model: Path, copy: Path, tensor: str, wrong: Wrong) -> Path:
    """Return a copy with changed bytes in one tensor."""
    shutil.copy(model, copy)
    with GgufFile.open(model) as file:
        info, raw = file.tensors[tensor], file.raw(tensor).copy()
        at, format = file.data_offset + info.offset, WeightFormat.member(info.type.name)
        before = format.dequantize(raw).tobytes()
    wrong(raw, format)
    assert format.dequantize(raw).tobytes() != before
    with copy.open("r+b") as out:
        out.seek(at)
        out.write(raw.tobytes())
    return copy


def one_nibble(raw: NDArray[np.uint8], format: type[WeightFormat]) -> None:
    """Change one nibble of a code in the last block, for any layout of a block."""
    before = format.dequantize(raw).tobytes()
    for byte in range(1, format.layout.itemsize):
        raw[-byte] ^= 0x10
        after = format.dequantize(raw)
        if after.tobytes() != before and np.isfinite(after).all():
            return
        raw[-byte] ^= 0x10


def scaled(raw: NDArray[np.uint8], format: type[WeightFormat]) -> None:
    """Scale a tensor by about a thousandth; half-precision scales are rounded."""
    blocks = raw.view(format.layout)
    for name in {"d", "m", "dmin"} & set(format.layout.names or ()):
        blocks[name] = (blocks[name].astype(np.float32) * np.float32(1.001)).astype(np.float16)


def one_layer_of(arch: str, folder: Path) -> Path:
    path = folder / f"{arch}.gguf"
    with llama_cpp_opened() as session:
        variant = replace(variant_named(arch), sizes=(("n_layer", 1),))
        make_variant(variant, path, session=session)
    return path


def model_of_arch(arch: str, folder: Path, keys: Mapping[str, tuple[str, Any]]) -> Path:
    """Write the model of `synth` for an architecture, with changed keys."""
    path, made = folder / f"{arch}.gguf", folder / f"{arch}-as-made.gguf"
    with llama_cpp_opened() as session:
        make_variant(variant_named(arch), made, session=session)
    with_keys(made, path, keys)
    return path
