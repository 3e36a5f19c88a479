"""Real weights, with a few tokens of each model; longer campaigns are separate commands."""

from collections.abc import Callable

import pytest

from lockstep.harness.check.check import Plan
from lockstep.harness.context.runner import Runner
from lockstep.harness.records import EXACT, Answered, Verdict
from tests.differential.conftest import Checked
from tests.real_models import real_model_or_skip

# Texts and ids of the original tokenizer without BOS, as printed in "Gemma 3 from scratch" in C++
# (the folder of documents, 001). Several spaces, which the page shows as one, are separate tokens.
SENTENCEPIECE = [
    (
        "Derinkuyu is an underground city.",
        [17361, 961, 78658, 563, 614, 26407, 3207, 236761],
    ),
    (" hello", [29104]),
    ("hello", [23391]),
    (2 * " " + "hello", [138, 23391]),
    (3 * " " + "hello", [139, 23391]),
    ("回転行列", [57364, 167089]),
    (40 * " " + "hello", [167, 145, 23391]),
]


@pytest.mark.parametrize("engine", ["reference", "llama.cpp"])
def test_vocabulary_of_gemma_3_gives_the_ids_of_the_original_tokenizer(engine: str) -> None:
    texts = [text.encode() for text, _ in SENTENCEPIECE]
    with Runner().open(engine, real_model_or_skip("gemma3-270m"), EXACT) as session:
        outcome = session.ask("tokenize", texts, add_special=False)
    assert isinstance(outcome, Answered)
    assert outcome.value == [ids for _, ids in SENTENCEPIECE]


@pytest.mark.parametrize(
    ("name", "suites"),
    [
        ("smollm2", ("metadata", "logits")),
        ("gemma3-270m", ("metadata", "logits")),
        ("minilm", ("metadata", "tokens", "shadow")),
    ],
)
def test_a_real_model_conforms(
    name: str, suites: tuple[str, ...], plan_for: Callable[..., Plan], checked: Checked
) -> None:
    plan = plan_for(real_model_or_skip(name), suites=suites, n_tokens=3)
    found: list[Verdict] = checked(plan)
    assert {v.status for v in found} <= {"agreed", "excused"}
    assert {v.suite for v in found if v.status == "agreed"} == set(suites)
