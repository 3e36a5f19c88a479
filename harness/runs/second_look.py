"""A second comparison, for engines whose run agrees with another configuration of llama.cpp.

An engine may add LoRA files to the weights when it loads the model, so that weights and pairs are
rounded together once. It may also store heads in a quantised cache without the rotation that
llama.cpp applies. No design of single ops explains these differences, but llama.cpp in another
configuration computes the same. The suites also allow all designs relative to this
configuration.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from lockstep.harness.check.check import BadInput, Opened, Plan, run_suites
from lockstep.harness.check.oracle_form import OracleForm, other_forms
from lockstep.harness.context.suite import NoAnswer
from lockstep.harness.records import LORA, StageText, Verdict
from lockstep.harness.synth.merged import write_merged

SUITES = (
    *("logits", "long-context", "logprobs", "embeddings", "states"),
    *("decode", "text", "trace", "products"),
)
FORM = "oracle_form"  # key in a verdict's detail: the form, if it is not the usual one
WORDS = {
    OracleForm.MERGED: "compared with llama.cpp on a file that holds the LoRA files",
    OracleForm.UNTURNED: "compared with llama.cpp without rotation of heads in the cache",
}
FINE = ("agreed", "not-applicable", "excused")


def look_again(
    plan: Plan,
    verdicts: Iterable[Verdict],
    opened: Callable[[Plan], Opened],
    progress: Callable[[str], None],
) -> Iterator[Verdict]:
    """Yield the verdicts. The verdicts of a diverging suite are replaced if the suite agrees with
    another configuration of the oracle."""
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
                    found = verdicts_on(again, opened)
                    if is_explained(found):
                        same = [said_of(each, form) for each in found]
                        break
            yield from same


def verdicts_on(plan: Plan, opened: Callable[[Plan], Opened]) -> list[Verdict]:
    """Return the verdicts with the other configuration. Return an empty list if an engine cannot be
    asked, so that the first verdicts remain."""
    with suppress(BadInput, NoAnswer), closing(opened(plan)) as other:
        return list(run_suites(other.context, plan.suites))
    return []


def is_explained(found: Sequence[Verdict]) -> bool:
    """Return True if at least one comparison agrees and none differs. Unanswered questions explain
    nothing."""
    statuses = {each.status for each in found}
    return "agreed" in statuses and statuses <= {*FINE}


def said_of(verdict: Verdict, form: OracleForm) -> Verdict:
    detail = {**verdict.detail, FORM: form.name.lower()}
    return replace(verdict, summary=f"{verdict.summary}; {WORDS[form]}", detail=detail)


def in_form(plan: Plan, form: OracleForm, folder: Path) -> Plan:
    """Return the plan with the oracle in this configuration. `folder` is for a merged file."""
    model = plan.model
    if form is OracleForm.MERGED:
        model = folder / plan.model.name
        if not model.exists():
            write_merged(plan.model, plan.settings.files_of(LORA), model)
    return replace(plan, model=model, form=form)
