"""Sentences about the fault of a stage."""

from lockstep.harness.records import SampleRequest
from lockstep.harness.samplers.judgement import StageFinding
from lockstep.harness.samplers.legal import StageDifference, Wrong


def describe_finding(finding: StageFinding, request: SampleRequest) -> str:
    """Return where and what: the stage with its parameters, the candidate, the numbers."""
    given = {k: v for k, v in request.chain[finding.stage].items() if k != "sampler"}
    named = ", ".join(f"{name} {value:.6g}" for name, value in given.items() if is_number(value))
    stages = len(request.chain)
    place = f"stage {finding.stage + 1} of {stages}" if stages > 1 else "the only stage"
    where = f"{finding.sampler} ({named})" if named else finding.sampler
    return f"{where}, {place}: {describe_difference(finding.difference)}"


def is_number(value: object) -> bool:
    return isinstance(value, int | float)


def describe_difference(found: StageDifference) -> str:
    token = f"token {found.token}"
    limit = f" (allowed {found.allowed:.3g})" if found.allowed else ""
    numbers = f"{found.actual:.9g}, expected {found.expected:.9g}{limit}"
    match found.wrong:
        case Wrong.FOREIGN:
            return f"{token} is in the list, and was not there before"
        case Wrong.DROPPED:
            return f"{found.actual:.0f} candidates are left, {token} is missing"
        case Wrong.KEPT:
            return f"{found.actual:.0f} candidates are left, {token} should not be there"
        case Wrong.RANK:
            return f"{token} is missing, and less likely ones are kept"
        case Wrong.LOGIT:
            return f"the logit of {token} is {numbers}"
        case Wrong.P:
            return f"the probability of {token} is {numbers}"
        case Wrong.CHOICE:
            return f"{token} is selected: {found.actual:.9g}, expected {found.expected:.9g}{limit}"
        case Wrong.NO_CHOICE:
            return "no token is selected"
