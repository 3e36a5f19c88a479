"""A second look at engines whose run is that of another form of llama.cpp.

An engine may add LoRA files to the weights when it loads the model: weights and pairs are rounded
once together then. It may hold heads in a quantised cache as they are, where llama.cpp turns them.
No design of single ops explains either; llama.cpp in that form does, and all designs apply there.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from lockstep.harness.check.check import Opened, Plan, run_suites
from lockstep.harness.check.oracle_form import OracleForm, other_forms
from lockstep.harness.records import LORA, StageText, Verdict
from lockstep.harness.synth.merged import write_merged

SUITES = ("logits", "long-context", "logprobs", "embeddings", "decode", "text", "trace", "products")
FORM = "oracle_form"  # of a verdict's detail, if it is not the usual one
FINE = ("agreed", "not-applicable", "excused")


def look_again(
    plan: Plan,
    verdicts: Iterable[Verdict],
    opened: Callable[[Plan], Opened],
    progress: Callable[[str], None],
) -> Iterator[Verdict]:
    """Yield the verdicts; those of a suite that diverges are replaced if the suite agrees with
    another form of the oracle."""
    forms = other_forms(plan.settings)
    if not forms:
        yield from verdicts
        return
    with TemporaryDirectory(prefix="lockstep-") as folder:
        for suite, group in groupby(verdicts, lambda verdict: verdict.suite):
            same = list(group)
            if suite in SUITES and any(each.status == "diverged" for each in same):
                for form in forms:
                    progress(StageText(f"comparing with llama.cpp {form.name.lower()}"))
                    again = replace(in_form(plan, form, Path(folder)), suites=(suite,))
                    with closing(opened(again)) as other:
                        found = list(run_suites(other.context, again.suites))
                    if all(each.status in FINE for each in found):
                        same = [
                            replace(each, detail={**each.detail, FORM: form.name.lower()})
                            for each in found
                        ]
                        break
            yield from same


def in_form(plan: Plan, form: OracleForm, folder: Path) -> Plan:
    """Return the plan with the oracle in this form. folder: where a merged file is written."""
    model = plan.model
    if form is OracleForm.MERGED:
        model = folder / plan.model.name
        if not model.exists():
            write_merged(plan.model, plan.settings.files_of(LORA), model)
    return replace(plan, model=model, form=form)
