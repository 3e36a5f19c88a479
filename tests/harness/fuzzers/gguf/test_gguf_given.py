"""The user's own files: each file gets verdicts that name it, whatever the results of other files
are."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
import pytest

from lockstep.harness.adapters.parts.parsing import (
    ACCEPTED,
    CRASHED,
    HUNG,
    allowed_memory,
    files_of,
    pack_files,
)
from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.context.suite import NoAnswer
from lockstep.harness.fuzzers.base import FuzzPlan
from lockstep.harness.fuzzers.gguf.campaign import FileCampaign
from lockstep.harness.fuzzers.gguf.given import given_cases
from lockstep.harness.fuzzers.gguf.grammar import alone
from lockstep.harness.fuzzers.gguf.shrink import cost_of, shrink_file
from lockstep.harness.fuzzers.gguf.stages import answer_about, opened_stages
from lockstep.harness.records import (
    EXACT,
    Answered,
    Crashed,
    Outcome,
    TimedOut,
    Unanswerable,
    Verdict,
)
from tests.engine.gguf.test_gguf_file import ARR, U8, array, gguf, pair

SLOW, DEADLY = b"SLOW", b"DEADLY"


class Another(Session):
    """A reader that answers like ours, except about one file."""

    name = "another"

    def __init__(self) -> None:
        self.ours = Runner().open("reference", None, EXACT)

    def _ask(self, question: str, args: Any, kwargs: Any, consume: Any = None) -> Outcome:
        blob, ends, _ = args
        files = list(files_of(blob, ends))
        if any(raw.endswith(SLOW) for raw in files):
            return TimedOut(seconds=300.0)
        if any(raw.endswith(DEADLY) for raw in files):
            return Crashed(message="another died")
        return self.ours.ask(question, blob, ends, "buffer")


class Mute(Another):
    def _ask(self, question: str, args: Any, kwargs: Any, consume: Any = None) -> Outcome:
        return Unanswerable(message="it parses nothing")


def verdicts(paths: Sequence[Path]) -> list[Verdict]:
    plan = FuzzPlan(targets=("given",), files=tuple(paths), oracle="another", witness=False)
    with ExitStack() as stack:
        subject = stack.enter_context(Runner().open("reference", None, EXACT))
        stages = opened_stages(stack, {Another(): {"buffer": 1}})
        campaign = FileCampaign(plan, "given", subject, stages, lambda *_: None)
        return list(campaign.judge_given(given_cases(plan)))


def test_slow_file_is_a_verdict_that_names_it(tmp_path: Path) -> None:
    good = alone("every-type")
    contents = {"a": good, "slow": good + SLOW, "b": good, "slow too": good + SLOW, "c": good}
    for name, raw in contents.items():
        (tmp_path / f"{name}.gguf").write_bytes(raw)
    found = verdicts([tmp_path / f"{name}.gguf" for name in contents])
    late = [v for v in found if v.status == "timed-out"]
    assert [Path(v.detail["name"]).stem for v in late] == ["slow", "slow too"]
    assert all(v.detail["name"] in v.summary for v in late)
    whole = [v.summary for v in found if v.status == "agreed"]
    assert len(whole) == len(contents)
    assert all(f"{name}.gguf: accepted" in said for name, said in zip(contents, whole, strict=True)
               if not name.startswith("slow"))  # fmt: skip


@pytest.mark.parametrize(("word", "ending"), [(SLOW, HUNG), (DEADLY, CRASHED)])
def test_unanswered_question_affects_no_other_file(word: bytes, ending: str) -> None:
    good = alone("every-type")
    files = [good] * 7
    files.insert(4, word)
    found = answer_about(Another(), "buffer", files)
    assert [found.ending(i) for i in range(8)] == [ACCEPTED] * 4 + [ending] + [ACCEPTED] * 3
    assert list(found.words) == [4]
    assert len(set(found.digests.tolist())) == 2


def test_engine_without_any_answer_is_not_asked_file_by_file() -> None:
    with pytest.raises(NoAnswer, match="it parses nothing"):
        answer_about(Mute(), "buffer", [b"GGUF", b"GGUF"])


def test_long_file_is_not_tried_in_large_batches() -> None:
    raw, asked = gguf([pair(b"k", ARR, array(U8, 1 << 18, bytes(1 << 18)))]), []

    def shows(files: list[bytes]) -> list[bool]:
        asked.append(cost_of(files))
        return [False] * len(files)

    shrink_file(raw, shows, most=4 * cost_of([raw]))
    assert max(asked) <= 64 + cost_of([raw])
    assert sum(asked) <= 5 * cost_of([raw])


def test_gguf_py_may_keep_one_view_per_element() -> None:
    """One file is honest, and needs the most memory. The header of another file only claims to need
    much."""
    n = 40_000
    numbers = gguf([pair(b"k", ARR, array(U8, n, bytes(n)))])
    with Runner().open("gguf-py", None, EXACT) as session:
        outcome = session.ask("parse", *pack_files([numbers]), "file")
    assert isinstance(outcome, Answered)
    peak, allowed = int(outcome.value["peaks"][0]), allowed_memory("gguf-py", len(numbers))
    assert allowed / 4 < peak < allowed
    claim = b"GGUF" + pack("<IQQ", 3, 0, 1 << 40)
    assert allowed_memory("gguf-py", np.array([len(claim)]))[0] < 17 << 20
