"""Lines below the table of a bisection by slices."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.harness.blackbox.asking import SliceAnswer, worst_of
from lockstep.harness.cli.blackbox import ends, where_else
from lockstep.harness.records import Status, Verdict

LENS = SimpleNamespace(type="Q4_0")


def looked(status: Status, summary: str = "shows no logits") -> Any:
    return SimpleNamespace(lens=LENS, answer=SliceAnswer(status=status, summary=summary))


def row(status: Status, layer: int | None = None, part: str = "") -> Any:
    parts = (SimpleNamespace(name=part, words="it was seen"),) if part else ()
    answer = SliceAnswer(status=status, summary="")
    return SimpleNamespace(answer=answer, parts=parts, layer=layer, what="")


def test_weights_without_a_lens_are_not_reported_as_agreeing() -> None:
    """An earlier summary on an engine with lists claimed 'every weight', although no weight was
    compared."""
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
def test_differing_run_is_named_if_no_part_differs(
    rows: list[Status], tensors: tuple[str, ...], said: bool
) -> None:
    """The wrong kernel is for one row of Q8_0, so every slice and every lens agrees."""
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


def test_empty_lists_at_the_end_of_the_text_do_not_hide_agreement() -> None:
    def verdict(suite: str, status: Status) -> Verdict:
        return Verdict(suite=suite, case="m", status=status, summary="")

    lists = [verdict("logprobs", "agreed"), verdict("logprobs", "excused")]
    assert worst_of(lists, "llama.cpp").status == "agreed"
    assert worst_of(lists[1:], "llama.cpp").status == "excused"
    wrong = [*lists, verdict("logprobs", "diverged")]
    assert worst_of(wrong, "llama.cpp").status == "diverged"


@pytest.mark.parametrize(
    ("whole", "command"),
    [
        ("diverged", "lockstep diagnose m.gguf --engine ./mine"),
        ("agreed", "lockstep slice m.gguf -o first.gguf; lockstep diagnose first.gguf"),
    ],
)
def test_mistake_is_searched_in_the_differing_suite(whole: Status, command: str) -> None:
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
