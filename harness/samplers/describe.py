"""Sentences that describe the fault of a stage."""

from collections.abc import Sequence

from lockstep.harness.records import SampleRequest
from lockstep.harness.samplers.drawn import DrawnDifference, Stage, Unlikely
from lockstep.harness.samplers.judgement import StageFinding
from lockstep.harness.samplers.legal import StageDifference, Wrong


def describe_finding(finding: StageFinding, request: SampleRequest) -> str:
    """Return a sentence on a finding: the stage with its parameters, the candidate, the numbers."""
    stages = len(request.chain)
    place = f"stage {finding.stage + 1} of {stages}" if stages > 1 else "the only stage"
    where = describe_stage(request.chain[finding.stage])
    return f"{where}, {place}: {describe_difference(finding.difference)}"


def describe_stage(stage: Stage) -> str:
    """Return a sampler's name with its parameters."""
    given = {k: v for k, v in stage.items() if k != "sampler"}
    named = ", ".join(f"{name} {value:.6g}" for name, value in given.items() if is_number(value))
    return f"{stage['sampler']} ({named})" if named else str(stage["sampler"])


def describe_stages(chain: Sequence[Stage]) -> str:
    """Return the stages before the draw as text. If the chain has no other stage, return a text
    that says so."""
    return ", ".join(map(describe_stage, chain[:-1])) or "the draw alone"


def describe_drawn(found: DrawnDifference) -> str:
    tokens = f"token {', '.join(map(str, found.tokens[:4]))}"
    if found.kind is Unlikely.KEPT:
        how = f"in {found.actual:.1%} of {found.draws} draws" if found.draws else "in the list"
        return f"{tokens} is {how}, but a right sampler removes it"
    if not found.draws and found.kind is Unlikely.DROPPED:
        return f"{tokens} is missing, expected {found.low:.6g} to {found.high:.6g}"
    numbers = f"{found.actual:.6g}, expected {found.low:.6g} to {found.high:.6g}"
    if found.before:
        tokens += f" after {', '.join(map(str, found.before))}"
    if not found.draws:
        return f"the probability of {tokens} is {numbers}"
    return f"the share of {tokens} in {found.draws} draws is {numbers}"


def is_number(value: object) -> bool:
    return isinstance(value, int | float)


def describe_difference(found: StageDifference) -> str:
    token = f"token {found.token}"
    limit = f" (allowed {found.allowed:.3g})" if found.allowed else ""
    numbers = f"{found.actual:.9g}, expected {found.expected:.9g}{limit}"
    match found.wrong:
        case Wrong.FOREIGN:
            return f"{token} is in the list, but was not in the list before the stage"
        case Wrong.DROPPED:
            return f"{found.actual:.0f} candidates are left, {token} is missing"
        case Wrong.KEPT:
            return f"{found.actual:.0f} candidates are left, {token} should not be there"
        case Wrong.RANK:
            return f"{token} is missing, but less likely candidates are kept"
        case Wrong.LOGIT:
            return f"the logit of {token} is {numbers}"
        case Wrong.P:
            return f"the probability of {token} is {numbers}"
        case Wrong.CHOICE:
            return f"{token} is selected: {found.actual:.9g}, expected {found.expected:.9g}{limit}"
        case Wrong.NO_CHOICE:
            return "no token is selected"
