"""A second look at engines that may add LoRA files to the weights when they load the model.

Weights and pairs are rounded once together then, so no design of the single products explains what
such an engine shows. llama.cpp on a file with merged weights does: all designs apply there.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from lockstep.harness.check.check import Opened, Plan, run_suites
from lockstep.harness.records import LORA, StageText, Verdict
from lockstep.harness.synth.merged import write_merged

SUITES = ("logits", "long-context", "logprobs", "embeddings", "decode", "text", "trace")
MERGED = "merged"  # of a verdict's detail: the oracle's file held the LoRA files


def judge_merged(
    plan: Plan,
    verdicts: Iterable[Verdict],
    opened: Callable[[Plan], Opened],
    progress: Callable[[str], None],
) -> Iterator[Verdict]:
    """Yield the verdicts; those of a suite that diverges are replaced if the suite agrees on merged
    weights."""
    loras = plan.settings.files_of(LORA)
    if not loras:
        yield from verdicts
        return
    with TemporaryDirectory(prefix="lockstep-") as folder:
        model = Path(folder) / plan.model.name
        for suite, group in groupby(verdicts, lambda verdict: verdict.suite):
            same = list(group)
            if suite in SUITES and any(each.status == "diverged" for each in same):
                progress(StageText("comparing with merged weights"))
                if not model.exists():
                    write_merged(plan.model, loras, model)
                again = replace(plan, model=model, suites=(suite,), merged=True)
                same = better_of(same, again, opened)
            yield from same


def better_of(
    first: Sequence[Verdict], plan: Plan, opened: Callable[[Plan], Opened]
) -> list[Verdict]:
    with closing(opened(plan)) as of_merged:
        second = list(run_suites(of_merged.context, plan.suites))
    if any(each.status not in ("agreed", "not-applicable", "excused") for each in second):
        return list(first)
    return [replace(each, detail={**each.detail, MERGED: True}) for each in second]
