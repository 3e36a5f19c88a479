"""Models whose tokens see later tokens, and that keep nothing between batches."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from lockstep.harness.check.check import Plan
from lockstep.harness.shadow.models import make_variants
from tests.differential.conftest import Checked

# an engine that shows only llama.cpp's next tokens
ALONE = """
    import numpy as np
    from lockstep.engine.batch import Batch
    from lockstep.harness.adapters.base import Adapter
    from lockstep.harness.adapters.llama_cpp.adapter import LlamaCpp
    from lockstep.harness.records import Request

    class Alone(Adapter):
        def __init__(self, model, settings):
            super().__init__(model, settings)
            self.inner = LlamaCpp(model, settings)

        def behind(self, ids):
            request = Request(batches=(Batch.for_next(ids[-MOST:]),))
            return self.inner.evaluate(request).logits[0][-1]
"""
QUESTIONS = {
    "logprobs": """
        def logprobs(self, prefixes, k):
            rows = [self.behind(ids) for ids in prefixes]
            best = [np.argsort(-row, kind="stable")[:k].tolist() for row in rows]
            return [[(i, float(row[i])) for i in b] for row, b in zip(rows, best)]
    """,
    "decode": """
        def greedy(self, prompt, n):
            ids = [int(self.behind(prompt).argmax())]
            while len(ids) < n:
                ids.append(int(self.behind(ids[-1:]).argmax()))
            return ids
    """,
}


def engine_of(folder: Path, suite: str, most: int) -> str:
    """Return an engine that reads only the last `most` tokens of a prompt."""
    path = folder / f"{suite}_{most}.py"
    path.write_text(dedent(ALONE.replace("MOST", str(most)) + QUESTIONS[suite]))
    return f"adapter:{path}"


@pytest.mark.parametrize("suite", QUESTIONS)
@pytest.mark.parametrize("arch", ["dream", "rnd1"])
def test_tokens_after_prefixes_are_requested_one_by_one(
    arch: str, suite: str, plan_for: Callable[..., Plan], checked: Checked, tmp_path: Path
) -> None:
    """Prefixes in one run would see later tokens, so honest engines were once accused.

    An engine that reads only the end of a prompt is found.
    """
    (path,) = make_variants([arch], tmp_path)
    plan = plan_for(path, suites=(suite,))
    found = checked(replace(plan, engine=engine_of(tmp_path, suite, 512)))
    assert {v.status for v in found} <= {"agreed", "excused", "not-applicable"}, found
    assert "agreed" in {v.status for v in found}
    found = checked(replace(plan, engine=engine_of(tmp_path, suite, 16)))
    assert {v.detail["at_fault"] for v in found if v.status == "diverged"} == {"subject"}


@pytest.mark.parametrize("arch", ["dream", "llada-moe"])
def test_logits_of_several_sequences_belong_to_their_tokens(
    arch: str, plan_for: Callable[..., Plan], checked: Checked, tmp_path: Path
) -> None:
    """The graph computes the logits of all tokens. So an honest run had more rows than expected,
    which once caused a traceback."""
    (path,) = make_variants([arch], tmp_path)
    (found,) = checked(plan_for(path, engine="llama.cpp", suites=("logits",)))
    assert found.status == "agreed", found.summary
    assert "with two sequences that come later" in found.summary


def test_logits_with_a_changed_first_row_are_requested_in_every_batch(
    plan_for: Callable[..., Plan], checked: Checked, tmp_path: Path
) -> None:
    """llama.cpp died if no logits were requested. If only some were requested, Lockstep once
    reported a false difference."""
    (path,) = make_variants(["chameleon"], tmp_path)
    (found,) = checked(plan_for(path, engine="llama.cpp", suites=("logits",)))
    assert found.status == "agreed", found.summary
