"""The fuzzer finds every wrong reader within seconds, makes the file small, and names the fault."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.fuzzers.base import FuzzPlan
from lockstep.harness.fuzzers.gguf.campaign import FileCampaign
from lockstep.harness.fuzzers.gguf.stages import opened_stages
from lockstep.harness.records import EXACT, Verdict
from tests.wrong_readers import READERS, wrong

CASES = 600
FOUND_BY = {  # reader -> family that reveals it, and expected text
    "trusts counts": ("broken", "llama.cpp buffer/refuses/truncated"),
    "trusts lengths": ("broken", "llama.cpp buffer/refuses/length"),
    "ignores the alignment": ("valid", "llama.cpp buffer/accepts/gap"),
    "lets tensors overlap": ("broken", "llama.cpp buffer/refuses/overlap"),
    "reads u64 lengths as u32": ("broken", "llama.cpp buffer/refuses/length"),
    "crashes on a negative extent": ("valid", "reference/crashes/TypeError"),
    "takes 13 for a type of value": ("broken", "table/refuses/value-type-13"),
}


@pytest.fixture(scope="module")
def llama_cpp() -> Iterator[Session]:
    with Runner().open("llama.cpp", None, EXACT) as session:
        session.ask("describe")
        yield session


def findings(family: str, llama_cpp: Session) -> list[Verdict]:
    """Return the findings of only the in-memory parser, because other parsers are equivalent but
    slower."""
    plan = FuzzPlan(targets=(family,), cases=CASES, seed=3)
    with ExitStack() as stack:
        subject = stack.enter_context(Runner().open("reference", None, EXACT))
        stages = opened_stages(stack, {llama_cpp: {"buffer": 1}})
        made = FileCampaign(plan, family, subject, stages, lambda *_: None).run()
        return [v for v in made if isinstance(v, Verdict) and v.status == "diverged"]


@pytest.mark.parametrize("name", FOUND_BY)
def test_a_wrong_reader_is_found_and_its_file_is_small(name: str, llama_cpp: Session) -> None:
    family, says = FOUND_BY[name]
    with wrong(name):
        found = findings(family, llama_cpp)
    named = [v for v in found if v.key == f"fuzz-gguf/{says}"]
    assert named, [v.key for v in found]
    assert named[0].detail["bytes"] < 200 or named[0].detail["stage"] == "table"
    assert "--hex" in named[0].repro or "--start" in named[0].repro


def test_the_right_reader_has_no_findings(llama_cpp: Session) -> None:
    assert [v.key for family in ("valid", "broken") for v in findings(family, llama_cpp)] == []


def test_wrong_readers_are_tried_or_known_to_be_invisible() -> None:
    """C interfaces do not show text after a NUL, so it is not compared."""
    assert READERS.keys() - FOUND_BY.keys() == {"stops at the first NUL"}
