"""Compares the tensors of a GGUF file with those of the checkpoint, one at a time."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import EngineError, InvalidModel, Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.quants.base import WeightFormat
from lockstep.harness.originals.architectures import OriginalArchitecture, TensorRule
from lockstep.harness.originals.causes import find_cause
from lockstep.harness.originals.checkpoint import OriginalCheckpoint
from lockstep.harness.originals.config import OriginalConfig
from lockstep.harness.originals.findings import (
    DifferenceKind,
    OriginalPart,
    PartResult,
    SkipReason,
)
from lockstep.harness.originals.held import TensorInFile, wrong_places
from lockstep.harness.originals.recipes import ExpectedTensor, expect
from lockstep.harness.originals.rounding import IMPORTANCE

MAX_EXPERTS = 1 << 12
FACTOR_TOLERANCE = 1e-5  # relative: factors of frequencies are computed in single precision
Progress = Callable[[str], object]


@dataclass
class TensorPlan:
    """The tensors that the file should hold, and the checkpoint's tensors that no table row
    uses."""

    wanted: dict[str, ExpectedTensor] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)


def compare_tensors(
    checkpoint: OriginalCheckpoint,
    architecture: OriginalArchitecture,
    config: OriginalConfig,
    file: GgufFile,
    n_tokens: int,
    progress: Progress,
) -> PartResult:
    """Return the tensors that differ from the converted checkpoint. `n_tokens` is the file's number
    of tokens; 0 if it has no vocabulary."""
    result = PartResult(part=OriginalPart.tensors)
    plan = plan_tensors(checkpoint, architecture, config)
    for name in plan.left:
        result.skip(SkipReason.no_row, name)
    factors = factors_of(config)
    for name in file.tensors:
        if name not in plan.wanted and name not in factors:
            result.add(DifferenceKind.unexpected, name, None, list(file.tensors[name].shape))
    for name, values in factors.items():
        compare_factors(result, name, values, file)
    for number, (name, expected) in enumerate(plan.wanted.items(), 1):
        progress(f"tensor {number} of {len(plan.wanted)}: {name}")
        try:
            compare_tensor(result, expected, plan, config, file, n_tokens)
        except Unsupported:
            result.skip(SkipReason.stored_type, name)
        file.release()
        for stored in checkpoint.tensors.values():
            stored.release()
    return result


def plan_tensors(
    checkpoint: OriginalCheckpoint, architecture: OriginalArchitecture, config: OriginalConfig
) -> TensorPlan:
    """Return the tensors that the file should hold, by the architecture's table. Raises
    InvalidModel."""
    heads = (config.n_head, config.n_head_kv)
    by_name: dict[str, str] = {}
    for name in checkpoint.tensors:
        stripped = architecture.strip_prefix(name)
        if stripped in by_name:
            raise InvalidModel(f"{name!r} and {by_name[stripped]!r} are the same tensor")
        by_name[stripped] = name
    plan, used = TensorPlan(), set()
    for rule in architecture.rules:
        for name, originals in matches(rule, by_name):
            used.update(originals)
            if name in plan.wanted:
                continue
            names = [by_name[each] for each in originals]
            stored = [checkpoint.tensors[each] for each in names]
            stacked = "#" in rule.original
            made = expect(name, names, stored, rule.recipe, heads, stacked=stacked)
            plan.wanted[name] = made
    tie_head(plan, config)
    ignored = re.compile(architecture.ignored)
    plan.left = [by_name[s] for s in by_name if s not in used and not ignored.fullmatch(s)]
    return plan


def matches(rule: TensorRule, names: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the tensors of a table row, one for each layer, with the originals of all experts."""
    pattern = re.escape(rule.original).replace(r"\*", r"(?P<layer>0|[1-9]\d{0,5})")
    pattern = pattern.replace(r"\#", "(?P<expert>0|[1-9][0-9]{0,5})")
    found: dict[str, dict[int, str]] = {}
    for name in names:
        if match := re.fullmatch(pattern, name):
            parts = match.groupdict()
            made = rule.name.replace("*", parts.get("layer") or "0")
            found.setdefault(made, {})[int(parts.get("expert") or 0)] = name
    for made, experts in found.items():
        if sorted(experts) != list(range(len(experts))) or len(experts) > MAX_EXPERTS:
            raise InvalidModel(f"{rule.original}: the experts of {made} are not 0 to N")
        yield made, [experts[number] for number in range(len(experts))]


def tie_head(plan: TensorPlan, config: OriginalConfig) -> None:
    """Plan the embeddings as the head if config.json ties both, even if the checkpoint has a
    separate head matrix."""
    if config.tied and "token_embd.weight" in plan.wanted:
        embeddings = plan.wanted["token_embd.weight"]
        plan.wanted["output.weight"] = replace(embeddings, name="output.weight", may_lack=True)


def factors_of(config: OriginalConfig) -> dict[str, NDArray[np.float64]]:
    """Return the tensors that are computed from config.json: factors of rope frequencies."""
    rope = config.rope
    try:
        if config.rope_type == "llama3":
            return {"rope_freqs.weight": llama3_factors(config)}
        if config.rope_type == "longrope":
            return {
                f"rope_factors_{kind}.weight": np.array(rope[f"{kind}_factor"], np.float64)
                for kind in ("long", "short")
            }
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise InvalidModel(f"config.json: parameters of the rope: {error!r:.200}") from None
    return {}


def llama3_factors(config: OriginalConfig) -> NDArray[np.float64]:
    """Return the factors of Llama 3.1: 1 for short waves, the full factor for long waves, and
    interpolated values in between.

    From the published definition (transformers, modeling_rope_utils).
    """
    rope, size = config.rope, config.head_dim
    factor, before = float(rope["factor"]), float(config.n_ctx_original)
    low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    waves = 2 * math.pi * float(config.rope_base) ** (np.arange(0, size, 2) / size)
    smooth = (before / waves - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    found = np.where(waves < before / high, 1.0, np.where(waves > before / low, factor, between))
    return np.asarray(found, np.float64)


def compare_factors(
    result: PartResult, name: str, values: NDArray[np.float64], file: GgufFile
) -> None:
    result.compared += 1
    if name not in file.tensors:
        result.add(DifferenceKind.missing, name, list(values.shape), None)
        return
    info = file.tensors[name]
    if info.shape != values.shape:
        result.add(DifferenceKind.shape, name, list(values.shape), list(info.shape))
        return
    got = WeightFormat.member(info.type.name).dequantize(file.raw(name))
    wrong = ~np.isclose(got, values, rtol=FACTOR_TOLERANCE, atol=0)
    if wrong.any():
        at = int(wrong.argmax())
        n = int(wrong.sum())
        facts = {"elements": n, "of_elements": len(values), "element": at}
        result.add(DifferenceKind.value, name, float(values[at]), float(got[at]), **facts)


def compare_tensor(
    result: PartResult,
    expected: ExpectedTensor,
    plan: TensorPlan,
    config: OriginalConfig,
    file: GgufFile,
    n_tokens: int,
) -> None:
    name, layer = expected.name, expected.layer
    place = {} if layer is None else {"layer": layer}
    if name not in file.tensors:
        if not expected.may_lack:
            result.compared += 1
            result.add(DifferenceKind.missing, name, list(expected.shape), None, **place)
        return
    result.compared += 1
    info = file.tensors[name]
    try:
        kind = WeightFormat.member(info.type.name)
    except EngineError:
        result.skip(SkipReason.stored_type, name)
        return
    shape, n_rows = info.shape, expected.n_rows
    if expected.recipe == "vocabulary" and shape[1:] == expected.shape[1:]:
        # further rows are padding, which the comparison of tokens checks
        n_rows = min(shape[0], expected.shape[0])
        if n_tokens not in (0, shape[0]):
            result.add(DifferenceKind.shape, name, n_tokens, shape[0])
            return
    elif shape != expected.shape:
        turned = shape == (*expected.shape[:-2], *expected.shape[:-3:-1])
        how = DifferenceKind.transposed if turned else DifferenceKind.shape
        result.add(how, name, list(expected.shape), list(shape), **place)
        return
    weighed = any(key.startswith(IMPORTANCE) for key in file.metadata)
    held = TensorInFile(kind, shape, file.raw(name), weighed)
    found = wrong_places(expected, held, n_rows)
    if found and expected.added and expected.stored[0].kind == "F16":
        found = wrong_places(replace(expected, in_stored_type=True), held, n_rows)
    if found:
        how, detail = find_cause(
            expected, plan.wanted, (config.n_head, config.n_head_kv), held, found
        )
        result.add(how, name, found.expected, found.got, **place, **found.detail(), **detail)
    elif expected.recipe == "vocabulary" and held.has_rows_after(n_rows):
        result.add(DifferenceKind.rows, name, 0.0, None, row=n_rows, rows=shape[0] - n_rows)
