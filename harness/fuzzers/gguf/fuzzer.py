"""GGUF parsers: our parser and others read files that are valid, unusual, broken or mutated."""

from collections.abc import Iterator
from contextlib import ExitStack

from lockstep.engine.choices import choices
from lockstep.harness.check.check import BadInput
from lockstep.harness.check.inputs import check_file
from lockstep.harness.context.suite import NoAnswer
from lockstep.harness.fuzzers.base import Checkpoint, Fuzzer, FuzzPlan, Progress
from lockstep.harness.fuzzers.gguf.campaign import FileCampaign
from lockstep.harness.fuzzers.gguf.given import CORPUS, GIVEN, GUIDED, files_in, given_cases
from lockstep.harness.fuzzers.gguf.grammar import FAMILIES, LARGEST
from lockstep.harness.fuzzers.gguf.guided import check_guided, run_guided
from lockstep.harness.fuzzers.gguf.models import MODELS, tiny_models
from lockstep.harness.fuzzers.gguf.stages import FULL, opened_stages
from lockstep.harness.records import Verdict
from lockstep.harness.shadow.models import NAMES_TENSORS

WITNESS = "gguf-py"
# each way is asked about one file in so many, according to its cost
WAYS = {
    "llama.cpp": {FULL: 1, "file": 4, "data": 8, "vocab": 64, "load": 64},
    WITNESS: {"file": 256},
    "reference": {FULL: 1},
}


class GgufFuzzer(Fuzzer, name="gguf"):
    def targets(self) -> list[str]:
        """Return the families that run by default. Three others must be named: `corpus` needs
        files, `guided` needs a folder, and `models` are slow."""
        return [family for family in FAMILIES if family != CORPUS]

    def check(self, plan: FuzzPlan) -> None:
        for target in plan.targets:
            if target not in (*FAMILIES, MODELS, GIVEN, GUIDED):
                known = choices(target, (*FAMILIES, MODELS))
                raise BadInput(f"fuzz gguf has no target {target!r} {known}")
        if MODELS in plan.targets and plan.oracle != NAMES_TENSORS:
            raise BadInput(f"{NAMES_TENSORS} makes the family models: omit --oracle")
        if GUIDED in plan.targets:
            check_guided(plan)
        if plan.corpus is not None and not plan.corpus.is_dir():
            raise BadInput(f"{plan.corpus}: no such folder of GGUF files")
        short = any(path.stat().st_size <= LARGEST for path in files_in(plan.corpus))
        if CORPUS in plan.targets and not short:
            raise BadInput(f"the family corpus needs files of at most {LARGEST} bytes: --corpus")
        for path in plan.files:
            check_file(path)

    def run(self, plan: FuzzPlan, progress: Progress) -> Iterator[Verdict | Checkpoint]:
        with ExitStack() as stack:
            names = [plan.oracle, *([WITNESS] if plan.witness else [])]
            subject, *others = (
                plan.open(name, stack) for name in dict.fromkeys([plan.engine, *names])
            )
            ways = {session: WAYS.get(session.name, {FULL: 1}) for session in others}
            for session in others:
                session.ask("describe")  # a worker belongs to the thread that starts it
            stages = opened_stages(stack, ways, WITNESS)
            for target in plan.targets or self.targets():
                campaign = FileCampaign(plan, target, subject, stages, progress)
                if target == MODELS:
                    campaign.corpus = tiny_models(others[0])
                try:
                    if target == GUIDED:
                        yield from run_guided(plan, campaign)
                    elif target == GIVEN:
                        yield from campaign.judge_given(given_cases(plan))
                    else:
                        yield from campaign.run()
                except NoAnswer as error:
                    yield campaign.verdict(
                        error.status,
                        error.summary,
                        error.detail,
                        "" if error.status == "not-compared" else f"fuzz-gguf/{error.status}",
                        campaign.all_again(),
                    )
