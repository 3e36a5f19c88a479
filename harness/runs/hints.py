"""Suggests the next command after a run that diverged, or that compared only little."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.harness.runs.commands import bisect_command, diagnose_command, without

if TYPE_CHECKING:
    from lockstep.harness.check.check import Plan
    from lockstep.harness.records import EngineInfo, Verdict
    from lockstep.harness.runs.result import RunResult

OF_RUNS = (
    *("logits", "long-context", "logprobs", "embeddings", "decode", "text", "black-box"),
    *("trace", "products"),
)
OF_FILES = ("metadata", "tokens")  # suites for which diagnose also knows mistakes
PLACE, MISTAKE = "find the place, with a proof", "name the mistake, if it is a known one"
MISTAKE_OF_A_SLICE = (
    "name the mistake on the first layers, because the whole model does not show it"
)
EXACTLY = "compare far more closely, if the server has an F32 cache and no flash attention"
LAYER = "find the layer and the part"
SMALL = "builtin:f32"
LAYERS = 2  # default number of layers that `slice` keeps
LARGE = 1 << 30  # bytes; a check of larger models takes more than a minute on two cores
# A diagnosis makes some eight hundred runs, one for each known mistake and each of two ways to
# round, unless it ends early. With weights of so many bytes, each run takes half a second.
LARGE_FOR_MANY_RUNS = 1 << 28


def next_step(plans: "Sequence[Plan]", result: "RunResult") -> str:
    """Return the commands that locate the difference in the first model that differs, or that
    compare more closely; "" if there are none."""
    return where_it_differs(plans, result) or what_sees_more(plans, result)


def what_is_quicker(model: Path | None, large: int = LARGE) -> str:
    """Return a quicker command for a model of at least `large` bytes, because on such a model the
    present command takes minutes. Return "" if the model has no more layers than `slice` keeps."""
    from lockstep.engine.errors import EngineError

    try:
        size, layers = (
            (0, 0) if model is None or not model.is_file() else size_and_layers(model, large)
        )
    # another command reports what is wrong with the file; some files cannot be sliced
    except (EngineError, OSError):
        return ""
    if model is None or size < large or layers <= LAYERS:
        return ""
    cut = shlex.join(["lockstep", "slice", str(model), "-o", slice_name(model)])
    return (
        f"{model.name} has {size / 1e9:.1f} GB, so this command takes minutes; "
        f"to check only its first layers: {cut}"
    )


def diagnose_of_a_slice(plan: "Plan", wrong: Sequence[int], n: int) -> str:
    """Return the commands that diagnose a slice with the first layers, up to the first wrong layer.
    After many layers a mistake may be smaller than the difference between honest engines. `wrong`
    are the wrong layers, and `n` is the number of layers. Return "" if the slice would keep all
    layers, or if the engines run different files."""
    keep = max(LAYERS, min(wrong, default=n) + 1)
    first, *options = shlex.split(without(plan.command, "--oracle"))
    if keep >= n or first != str(plan.model) or plan.subject_model != plan.model:
        return ""
    name = slice_name(plan.model)
    cut = ["lockstep", "slice", str(plan.model), "-o", name]
    cut += ["--layers", str(keep)] if keep != LAYERS else []
    return f"{shlex.join(cut)}; {shlex.join(['lockstep', 'diagnose', name, *options])}"


def smaller_model(plan: "Plan") -> str:
    """Return the commands that diagnose only the first layers of a model, or a built-in model."""
    from lockstep.engine.gguf.split_files import open_model
    from lockstep.harness.blackbox.slices import n_layers

    with open_model(plan.model) as file:
        first = diagnose_of_a_slice(plan, [0], n_layers(file))
    if first:
        return f"its first layers take less time: {first}"
    _, *options = shlex.split(without(plan.command, "--oracle", "--subject-model"))
    return f"a small model takes less time: {shlex.join(['lockstep', 'diagnose', SMALL, *options])}"


def slice_name(model: Path) -> str:
    return "first.gguf" if model.name != "first.gguf" else "fewer.gguf"


def size_and_layers(model: Path, large: int) -> tuple[int, int]:
    """Return the size of all the model's files in bytes, and the number of its layers; (0, 0) for a
    small file, which is not opened."""
    from lockstep.engine.gguf.split_files import NAME, open_model
    from lockstep.harness.blackbox.slices import n_layers

    if NAME.fullmatch(model.name) is None and model.stat().st_size < large:
        return 0, 0
    with open_model(model) as file:
        return file.size, n_layers(file)


def what_sees_more(plans: "Sequence[Plan]", result: "RunResult") -> str:
    """Return commands that compare a conforming engine more closely. They apply to a server that
    was compared under the default preset, and to an engine that opens any file but shows no
    tensors."""
    from lockstep.harness.adapters.parts.users import is_users
    from lockstep.harness.http.session import is_address, is_served
    from lockstep.harness.protocol.session import command_of
    from lockstep.harness.records import DEFAULT

    plan, found = plans[0], list[str]()
    if result.code:
        return ""
    served = is_served(plan.engine)
    if (is_address(plan.engine) or served) and plan.settings.name == DEFAULT.name:
        command = f"lockstep check {without(plan.command, '--settings')} --settings exact"
        found.append(f"{EXACTLY}: {command}")
    if can_be_sliced(plan, result.engines) and (
        is_users(plan.engine) or served or command_of(plan.engine) is not None
    ):  # the engine is the user's
        acid = f"lockstep check --suite acid --engine {shlex.quote(plan.engine)}"
        found.append(f"look closer without tensors: {black_box_command(plan)}; {acid}")
    return "\n".join(found)


def where_it_differs(plans: "Sequence[Plan]", result: "RunResult") -> str:
    from lockstep.harness.runs.known_failures import is_gone_entry

    for plan in plans:
        found = [v for v in result.verdicts if v.case == plan.case and v.about != plan.oracle]
        wrong = {v.suite for v in found if v.status == "diverged" and not is_gone_entry(v)}
        if not wrong.intersection(OF_RUNS + OF_FILES) or plan.command.startswith("--arch"):
            continue
        if not wrong.intersection(OF_RUNS):
            return f"{MISTAKE}: {diagnose_command(plan)}"
        sliced = can_be_sliced(plan, result.engines)
        traced = any(v.suite == "trace" and v.status in ("agreed", "diverged") for v in found)
        if traced or ("long-context" in wrong and not sliced):  # this engine opens files
            return f"{PLACE}: {bisect_command(plan)}"
        if not plan.engine.startswith("dump:") and not plan.settings.adapters:
            ordinary = any(v.status == "diverged" and not is_of_a_made_model(v) for v in found)
            return "\n".join(without_tensors(plan, sliced=sliced, ordinary=ordinary))
    return ""


def is_of_a_made_model(verdict: "Verdict") -> bool:
    """Return True for a verdict that `diagnose` cannot reproduce, because it is about a probe model
    or several threads."""
    from lockstep.harness.records import MADE_MODEL

    elsewhere = MADE_MODEL in verdict.detail or "n_threads" in verdict.detail
    return elsewhere or verdict.suite in ("black-box", "long-context")


def without_tensors(plan: "Plan", *, sliced: bool, ordinary: bool = True) -> Iterator[str]:
    """Yield commands that locate the fault and name the mistake without tensors. `sliced` is True
    if the engine runs probe models. `ordinary` is True if the engine is also wrong on the plan's
    own model, because `diagnose` uses only this model."""
    if sliced:
        yield f"{LAYER}: {black_box_command(plan)}"
    if ordinary:
        yield f"{MISTAKE}: {diagnose_command(plan)}"


def black_box_command(plan: "Plan") -> str:
    return f"{bisect_command(plan)} --black-box"


def can_be_sliced(plan: "Plan", engines: "Sequence[EngineInfo]") -> bool:
    """Return True if the engine shows no tensors, and can run probe models made from the plan's
    model."""
    from lockstep.harness.blackbox.offers import shows_no_tensors, why_not_asked

    own = [info for info in engines if info.engine != plan.oracle and shows_no_tensors(info)]
    return any(not why_not_asked(plan.engine, info.levels) for info in own)
