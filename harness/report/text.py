"""Text for users: sites, findings and verdicts in words."""

import re
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from lockstep.harness.judging.judge import SiteFinding
from lockstep.harness.records import Site, Verdict

MARKS = {
    "agreed": "ok",
    "diverged": "DIVERGED",
    "excused": "excused",
    "not-compared": "not compared",
    "not-applicable": "not applicable",
    "crashed": "CRASHED",
    "timed-out": "TIMED OUT",
    "malformed": "MALFORMED",
    "internal": "INTERNAL",
}


# places to look at if no op is wrong
CALLS = "state kept between calls, at the order of calls, and at sampling"
THREADS = "memory that threads share, and at the rows that remain after splitting"
LEFT = "state of an earlier run that is not cleared: a recurrent state, a cache, a buffer"
RACES = "sums in thread order, at reads of uninitialized memory, and at state of an earlier run"
BEFORE_RUNS = {  # suites that test parts outside the runs
    "tokens": "the tokenizer (its runs are right)",
    "metadata": "the file reader (its runs are right)",
    "dequant": "the decoding of single weights (its runs are right)",
}
AT_FAULT = {"subject": "the engine under test", "oracle": "the oracle", "both": "both engines"}
# this suite also runs with several threads, which may cause its differences
OF_THREADS = "long-context"
# on these models an op is wrong by less than the user's model would show
OF_MADE_MODELS = "black-box"
OF_SMALL = "look for differences on probe models with bisect --black-box"
LONG_WORD = 48  # characters; of longer words, such as hex, only a part is shown
CI_COMMAND = re.compile(r"##(?=\w*\[)")


def printable(text: str, keep: str = "") -> str:
    """Escape everything in the text that could control a terminal. Also escape commands that CI
    systems read from a log: `##[error]` (GitHub), `##vso[` (Azure)."""
    shown = "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
    )
    return CI_COMMAND.sub(r"#\\x23", shown)


def cut(text: str, most: int) -> str:
    """Return the beginning of a line. The line is cut between words, so that no number is
    truncated."""
    if len(text) <= most:
        return text
    head = text[: most - 1]
    at = head.rfind(" ")
    return f"{head[:at] if len(head) - at < LONG_WORD and at > 0 else head}…"


def fault_of(who: str) -> str:
    """Return a clause that names the engine at fault. `who` is the verdict's `at_fault`."""
    return f"at fault: {AT_FAULT.get(who, who)}"


def site_name(site: Site) -> str:
    return str(site) if site.step == 0 else f"{site} (step {site.step})"


def place_in(detail: Mapping[str, Any]) -> str:
    """Return the place of a verdict's node. The layer is added if the node's name does not contain
    it. Reports of older versions have no name."""
    of_layer = Site(step=0, layer=detail.get("layer"), name=detail["site"])
    name = str(detail.get("node", of_layer))
    return site_name(Site(step=detail.get("step") or 0, layer=None, name=name))


def explain_finding(finding: SiteFinding) -> str:
    """Return a line with the place, the value, the error and the limit."""
    m = finding.mismatch
    if m is None:
        return f"{site_name(finding.site)} agrees"
    where = f"{site_name(finding.site)} = {finding.op}"
    if m.kind == "missing":
        return f"{where}: missing, although the engine offers this tensor"
    if m.kind != "value":
        return f"{where}: {m.detail or m.kind}"
    return (
        f"{where}: {m.mismatched} of {m.total} elements off, worst {list(m.index)} of "
        f"{finding.axes} is "
        f"{m.actual:.9g}, expected {m.expected:.9g} (allowed {m.allowed:.2g})"
    )


def explain(verdict: Verdict) -> str:
    """Return a divergence as four lines and a command."""
    d = verdict.detail
    # an engine's message may have several lines; a prefix keeps CI from reading commands in them
    summary = verdict.summary.replace("\n", "\n  | ")
    lines = [f"{verdict.case} {verdict.suite}: {summary}"]
    if "reason" in d:
        lines.append(f"  allowed because: {d['reason']}")
    if "err_local" in d and isfinite(d["err_local"]):  # a value of a wrong shape has no distance
        line = f"  on {d.get('basis', 'its inputs')} off by {d['err_local']:.2g}"
        if isfinite(d["err_out"]):  # the value was shown too
            line += (
                f"; in the engine's own run the error is {d['err_in']:.1e} at the input "
                f"and {d['err_out']:.1e} at the output"
            )
            line += " (of the largest value)"
        lines.append(line)
    if d.get("parameters"):
        lines.append(f"  {d['parameters']}")
    if d.get("rest"):
        lines.append(f"  {d['rest']}")
    for line in last_words(d.get("log", [])):
        lines.append(f"  | {line}")
    if verdict.repro:
        lines.append(f"  again: {verdict.repro}")
    return "\n".join(lines)


# patterns of messages in JavaScript, Java, Go, Rust and C#; a stack follows them
MESSAGE = re.compile(
    r"\s*(?:panic: |thread '.+' panicked|Exception in thread|Unhandled exception|fatal error: |"
    r"(?:Uncaught )?[\w.]*(?:Error|Exception)\b.*:)"
)


def last_words(log: Sequence[str]) -> Sequence[str]:
    """Return the last lines of an engine's log, without Python's report on its threads. Some
    languages print a stack after the error message. For these, return the message and the last
    line."""
    fatal = next((i for i, line in enumerate(log) if line.startswith("Fatal Python error")), None)
    log = log[:fatal] if fatal else log
    said = next((i for i in reversed(range(len(log))) if MESSAGE.match(log[i])), len(log))
    behind = log[said + 1 :]
    # Go indents every other line of a stack; otherwise the program continued after such a message
    if said >= len(log) - 6 or 3 * sum(line[:1].isspace() for line in behind) < len(behind):
        return log[-6:]
    return [*log[said : said + 4], "...", log[-1]]


def where_to_look(others: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """Return advice on where to look for a fault if no op is wrong. `others` holds the suite and
    the detail of each verdict of `check`."""
    every = list(others)
    suites = {suite for suite, _ in every}
    if suites and suites <= BEFORE_RUNS.keys():
        places = ", and at ".join(BEFORE_RUNS[suite] for suite in BEFORE_RUNS if suite in suites)
        return f"no op is wrong on its own inputs: look at {places}"
    threads = {"n_threads" in detail for suite, detail in every if suite != OF_THREADS}
    if threads == {True}:  # with one thread, it was right
        return f"no op is wrong on its own inputs: look at {THREADS}"
    races = [detail for _, detail in every if detail.get("kind") == "not-deterministic"]
    if races:  # other differences may follow from this one
        then = f"; if these are right, at {CALLS}" if len(races) < len(every) else ""
        left = all(detail.get("first_alone") or detail.get("by_history") for detail in races)
        return f"no op is wrong on its own inputs: look at {LEFT if left else RACES + then}"
    if suites == {OF_MADE_MODELS}:
        return f"no op is wrong by more than the noise of honest runs: {OF_SMALL}"
    return f"no op is wrong on its own inputs: look at {CALLS}"
