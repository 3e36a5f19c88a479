"""What is said below the table of a bisection by slices."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.harness.blackbox.asking import SliceAnswer, worst_of
from lockstep.harness.cli.blackbox import ends, only_as_stored, reasons, where_else
from lockstep.harness.records import Status, Verdict

LENS = SimpleNamespace(type="Q4_0")


def looked(status: Status, summary: str = "shows no logits") -> Any:
    return SimpleNamespace(lens=LENS, answer=SliceAnswer(status=status, summary=summary))


def row(status: Status, layer: int | None = None, part: str = "") -> Any:
    parts = (SimpleNamespace(name=part, words="it was seen"),) if part else ()
    answer = SliceAnswer(status=status, summary="")
    return SimpleNamespace(answer=answer, parts=parts, layer=layer, what="")


def test_an_engine_of_lists_that_is_right_in_f32_is_told_what_is_left() -> None:
    """Swapped nibbles in a server: its lenses need logits, and no line said what that leaves."""
    for rows, lenses, said in (
        (["agreed", "agreed"], ["not-applicable"], "Q4_0"),
        (["agreed", "diverged"], ["not-applicable"], ""),
        (["agreed", "agreed"], ["agreed"], ""),
        (["agreed"], [], ""),
        ([], ["not-applicable"], ""),
    ):
        result: Any = SimpleNamespace(
            rows=[row(status) for status in rows], lenses=[looked(status) for status in lenses]
        )
        assert only_as_stored(result) == said


def test_weights_that_no_lens_showed_are_not_said_to_agree() -> None:
    """An engine of lists: the summary was 'every weight' where no weight had been looked at."""
    whole = SliceAnswer(status="agreed", summary="")
    for named in (False, True):
        result: Any = SimpleNamespace(
            rows=[row("agreed")],
            lenses=[looked("agreed" if named else "not-applicable")],
            places=[],
            whole=whole,
            in_f32={},
            others=[],
            left_out=[],
            no_places="",
            exit_code=0,
        )
        plan: Any = None
        *_, last = ends(plan, result)
        assert last.startswith("every slice")
        assert ("every weight" in last) == named


@pytest.mark.parametrize(
    ("rows", "tensors", "said"),
    [
        (["agreed", "agreed"], (), True),
        (["agreed", "diverged"], (), False),
        (["agreed", "agreed"], ("blk.0.attn_q.weight",), False),
    ],
)
def test_where_no_part_is_named_the_run_that_differs_is(
    rows: list[Status], tensors: tuple[str, ...], said: bool
) -> None:
    """A kernel for one row of Q8_0: every slice and every lens agreed, and the last word was
    DIVERGENCE."""
    summary = "those of 2 of 34 tokens, none before batch 1"
    look = looked("diverged" if tensors else "agreed")
    look.tensors = tensors
    result: Any = SimpleNamespace(
        rows=[row(status) for status in rows],
        lenses=[look],
        places=[],
        whole=SliceAnswer(status="diverged", summary=summary),
        others=[],
    )
    assert (summary in " ".join(where_else(result))) == said


def test_lists_that_are_empty_where_the_text_ends_do_not_hide_those_that_agree() -> None:
    def verdict(suite: str, status: Status) -> Verdict:
        return Verdict(suite=suite, case="m", status=status, summary="")

    lists = [verdict("logprobs", "agreed"), verdict("logprobs", "excused")]
    assert worst_of(lists, "llama.cpp").status == "agreed"
    assert worst_of(lists[1:], "llama.cpp").status == "excused"
    wrong = [*lists, verdict("logprobs", "diverged")]
    assert worst_of(wrong, "llama.cpp").status == "diverged"


def test_a_reason_that_many_lenses_share_is_said_once() -> None:
    lenses = [looked("not-applicable")] * 5
    assert list(reasons([], lenses)) == ["lens Q4_0: not-applicable: shows no logits"]


def test_of_many_lenses_that_differ_some_are_said_and_the_number_of_the_rest() -> None:
    """A decoder that swapped nibbles was wrong in all 25, a line each."""
    wrong = [looked("diverged", str(n)) for n in range(5)]
    assert list(reasons([], wrong)) == [
        "lens Q4_0: diverged: 0",
        "lens Q4_0: diverged: 1",
        "lens Q4_0: diverged: 2",
        "lens Q4_0: and 2 more like it: in the report",
    ]


def test_a_reason_that_many_layers_share_is_said_once_and_others_apart() -> None:
    """An engine without one bias had a line for each of its 24 layers."""
    wrong = {0: "bias", 1: "bias", 2: "bias", 4: "bias", 5: "eps"}
    rows = [row("agreed"), *(row("diverged", layer, part) for layer, part in wrong.items())]
    rows += [row("agreed", 6), row("diverged", None, "bias")]
    assert list(reasons(rows, [])) == [
        "layers 0 to 2, 4: bias: it was seen",
        "layer 5: eps: it was seen",
        "outside the layers: bias: it was seen",
    ]


@pytest.mark.parametrize(
    ("whole", "command"),
    [
        ("diverged", "lockstep diagnose m.gguf --engine ./mine"),
        ("agreed", "lockstep slice m.gguf -o first.gguf; lockstep diagnose first.gguf"),
    ],
)
def test_a_mistake_is_looked_for_where_it_shows(whole: Status, command: str) -> None:
    result: Any = SimpleNamespace(
        rows=[row("diverged", layer, "bias") for layer in range(5)],
        lenses=[],
        places=[],
        whole=SliceAnswer(status=whole, summary=""),
        in_f32={},
        others=[],
        left_out=[],
        no_places="",
        exit_code=1,
    )
    path, text = Path("m.gguf"), "m.gguf --engine ./mine"
    plan: Any = SimpleNamespace(model=path, subject_model=path, command=text)
    *_, last = ends(plan, result)
    assert f": {command}" in last
