"""What is said below the table of a bisection by slices."""

from types import SimpleNamespace
from typing import Any

from lockstep.harness.blackbox.asking import SliceAnswer, worst_of
from lockstep.harness.cli.blackbox import ends, only_as_stored, reasons
from lockstep.harness.records import Status, Verdict

LENS = SimpleNamespace(type="Q4_0")


def looked(status: Status) -> Any:
    return SimpleNamespace(lens=LENS, answer=SliceAnswer(status=status, summary="shows no logits"))


def row(status: Status) -> Any:
    return SimpleNamespace(answer=SliceAnswer(status=status, summary=""), parts=())


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
