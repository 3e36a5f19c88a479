"""Weight decoders: blocks of arbitrary bytes, compared bit for bit with ggml's decoders, with
gguf-py as a witness."""

from collections.abc import Iterator
from contextlib import ExitStack

from lockstep.engine.quants.base import WeightFormat
from lockstep.engine.registry import import_members
from lockstep.harness.check.check import BadInput
from lockstep.harness.fuzzers.base import Fuzzer, FuzzPlan, Progress
from lockstep.harness.fuzzers.quants.campaign import BlockCampaign
from lockstep.harness.records import Verdict

WITNESSES = ("gguf-py", "reference")  # the first that is neither oracle nor subject is used
NUMBERS = "ieee754"  # the oracle for types that llama.cpp stores but does not decode


class QuantsFuzzer(Fuzzer, name="quants"):
    def targets(self) -> list[str]:
        """Return every weight format, in the order of ggml's ids."""
        import_members("lockstep.engine.quants")
        formats = sorted(WeightFormat.family.values(), key=lambda kind: kind.type_id)
        return [kind.name for kind in formats]

    def check(self, plan: FuzzPlan) -> None:
        super().check(plan)
        if plan.given and len(plan.targets) != 1:
            raise BadInput("--block needs the type: give one --type")
        for block in plan.given:
            size = WeightFormat.member(plan.targets[0]).layout.itemsize
            if len(block) != size:
                raise BadInput(
                    f"a block of {plan.targets[0]} has {size} bytes, and the given block "
                    f"{len(block)}"
                )

    def run(self, plan: FuzzPlan, progress: Progress) -> Iterator[Verdict]:
        targets = plan.targets or self.targets()
        with ExitStack() as stack:
            free = [n for n in WITNESSES if n not in (plan.engine, plan.oracle)]
            witness = free[0] if free else "llama.cpp"
            oracle, subject, third, numbers = (
                plan.open(name, stack) for name in (plan.oracle, plan.engine, witness, NUMBERS)
            )
            for name in targets:
                kind = WeightFormat.member(name)
                campaign = BlockCampaign(plan, kind, subject, oracle, third, numbers, progress)
                yield from campaign.verdicts()
