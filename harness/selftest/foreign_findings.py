"""A finding about a foreign engine in reproducible form: the smallest file that shows it, and a
text."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from lockstep.harness.acid.write import write_acid
from lockstep.harness.check.check import Plan, open_plan, run_suites
from lockstep.harness.foreign.engines import ENGINES
from lockstep.harness.known.foreign import Finding
from lockstep.harness.records import EXACT, Verdict
from lockstep.harness.shadow.models import make_variant, open_for_variants
from lockstep.harness.synth.any_arch import variant_named, with_vocabulary
from lockstep.harness.synth.gguf_writer import write_gguf
from lockstep.harness.synth.llama import LlamaRecipe, check, metadata, tensors

FILE = "case.gguf"
FAILED = ("crashed", "timed-out", "malformed", "internal")
N_VOCAB = 384
N_TOKENS, N_STEPS = 8, 4  # enough for every finding; some engines compile for each step


def write_case(finding: Finding, path: Path) -> None:
    """Write the file of the finding, with the same bytes on every machine."""
    if finding.acid:
        write_acid(path, quant=finding.acid)
        return
    if finding.arch:
        changed = {key: value for key, (_, value) in finding.keys.items()}
        write_any(finding.arch, path, sizes=finding.recipe, changed=changed)
        return
    recipe = LlamaRecipe(**finding.recipe)
    check(recipe)
    keys = metadata(recipe) | {key: (kind, value) for key, (kind, value) in finding.keys.items()}
    kept = {key: value for key, value in keys.items() if key not in finding.without}
    write_gguf(path, kept, tensors(recipe))


def write_any(
    arch: str, path: Path, *, sizes: Mapping[str, int], changed: Mapping[str, int]
) -> None:
    """Write a model with changed keys. `changed` maps keys, each of which begins with a dot, to
    their new numbers."""
    found = replace(variant_named(arch), sizes=tuple(sizes.items()), changed=tuple(changed.items()))
    with open_for_variants() as session:
        make_variant(with_vocabulary(found, N_VOCAB), path, session=session)


def verdicts_on_case(finding: Finding, progress: Callable[[str], None]) -> list[Verdict]:
    """Return the verdicts of the finding's suites on its file. Raises BadInput if the engine is not
    built."""
    with TemporaryDirectory(prefix="lockstep-") as folder:
        path = Path(folder) / FILE
        write_case(finding, path)
        plan = Plan(
            case=finding.id,
            model=path,
            subject_model=path,
            engine=finding.engine,
            settings=EXACT,
            suites=finding.suites,
            n_tokens=N_TOKENS,
            n_steps=N_STEPS,
        )
        with closing(open_plan(plan, progress)) as opened:
            return list(run_suites(opened.context, finding.suites))


def is_seen_in(finding: Finding, verdict: Verdict) -> bool:
    return f"{finding.id}: " in verdict.detail.get("known", "")


def ending_of(finding: Finding, verdicts: Sequence[Verdict]) -> tuple[int, str]:
    """Return an exit code and a description. An engine that could not answer proves neither that
    the fault still occurs nor that it is gone."""
    if any(is_seen_in(finding, verdict) for verdict in verdicts):
        return 0, "still true"
    failed = [verdict.summary for verdict in verdicts if verdict.status in FAILED]
    if failed or all(v.status not in ("agreed", "diverged", "excused") for v in verdicts):
        needs = ENGINES[finding.engine].needs
        hint = f"; {finding.engine} needs {needs}" if needs else ""
        return 3, f"no result: {(failed or ['nothing was compared'])[0]}{hint}"
    return 1, "no longer reproduces: remove the finding"


def commands(finding: Finding) -> tuple[str, ...]:
    suites = " ".join(f"--suite {suite}" for suite in finding.suites)
    return (
        f"lockstep engine add {finding.engine}",
        f"lockstep finding {finding.id} --run",
        "",
        f"lockstep finding {finding.id} -o {FILE}    # or by hand",
        f"lockstep check {FILE} --engine {finding.engine} {suites}",
    )


def text_of(finding: Finding) -> str:
    """Return the finding as a text to file as an issue."""
    seen = f"{finding.engine} {finding.version}, by `lockstep check`: {', '.join(finding.suites)}"
    lines = [f"# {finding.sentence}", "", f"Seen in {seen}.", ""]
    lines += [f"Cause: {finding.cause}", "", "To see it:", ""]
    lines += [f"    {line}".rstrip() for line in commands(finding)]
    lines += ["", f"Status: {finding.status}"]
    return "\n".join([*lines, *([finding.link] if finding.link else [])])
