"""What a person reads: nothing from a file or a model reaches the terminal unescaped."""

import io
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import typer

from lockstep.harness.cli.terminal import Terminal, excused_lines, fold, more_like
from lockstep.harness.judging.judge import SiteFinding
from lockstep.harness.records import Mismatch, Site, TensorSummary, Verdict
from lockstep.harness.report.text import (
    MARKS,
    cut,
    explain,
    explain_finding,
    last_words,
    place_in,
    printable,
    site_name,
)
from lockstep.harness.runs.run import RunResult
from lockstep.harness.selftest.tokens import in_words
from lockstep.harness.suites.dequant import divergence

HOSTILE = "[red]x[/red] :smile: \x1b[2J\x1b]0;title\x07 \r\x08 \x9b31m \u202e \udc80 \x00"


class Screen(io.StringIO):
    """A standard stream that says that it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def verdict(**changes: Any) -> Verdict:
    known: dict[str, Any] = {"suite": "trace", "case": "m.gguf", "status": "diverged"}
    return Verdict(**(known | {"summary": "they differ", "repro": "lockstep check m"} | changes))


def finding(mismatch: Mismatch | None, step: int = 0) -> SiteFinding:
    return SiteFinding(
        site=Site(step=step, layer=3, name="ffn_out"),
        op="MUL_MAT",
        err_local=0.5,
        err_oracle=0.0,
        allowed=1e-6,
        reason="counted",
        size=1.0,
        mismatch=mismatch,
        at_fault="subject",
    )


def is_harmless(text: str) -> bool:
    return all(c.isprintable() or c in "\n\t" for c in text)


def test_what_could_steer_a_terminal_is_escaped() -> None:
    shown = printable(HOSTILE)
    assert is_harmless(shown)
    assert "\\x1b[2J" in shown
    assert "\\udc80" in shown
    assert "\\u202e" in shown


def test_text_that_is_only_text_stays_as_it_is() -> None:
    text = "Größe 你好 [red] \\x1b 'quoted'"
    assert printable(text) == text
    assert printable("a\nb\tc") == "a\\nb\\tc"
    assert printable("a\nb\tc", keep="\n\t") == "a\nb\tc"


def test_a_verdict_from_a_hostile_file_is_shown_escaped_and_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    Terminal(quiet=False).verdict(verdict(case=HOSTILE, summary=HOSTILE))
    shown = screen.getvalue()
    assert is_harmless(shown)
    assert shown.count("\n") == 1
    assert shown.count("[red]x[/red] :smile:") == 2  # markup and emoji codes are text


def test_a_models_text_is_escaped_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stdout", screen)
    Terminal(quiet=True).line(f"[bold]one\ttwo\nthree {HOSTILE}")
    assert is_harmless(screen.getvalue())
    assert screen.getvalue().startswith("[bold]one\ttwo\nthree [red]x")


def test_a_models_text_goes_into_a_pipe_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    text = "tab\there \x1b[2J :smile: [red] " + "long " * 100
    Terminal(quiet=True).data(text)
    assert capsys.readouterr().out == text + "\n"


def test_a_refusal_of_a_hostile_file_is_one_harmless_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    import typer

    from lockstep.engine.errors import Unsupported

    with pytest.raises(typer.Exit) as left, Terminal(quiet=True):
        raise Unsupported(f"no architecture named {HOSTILE}\n{HOSTILE}")
    assert left.value.exit_code == 2
    shown = capsys.readouterr().err
    assert is_harmless(shown)
    assert shown.count("\n") == 1


def test_what_nobody_foresaw_is_a_defect_of_lockstep_and_exit_code_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(typer.Exit) as ending, Terminal(quiet=True):
        raise ZeroDivisionError("by zero")
    assert ending.value.exit_code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "Lockstep failed, please report this" in line
    assert "ZeroDivisionError: by zero (test_text.py, line" in line


def test_a_divergence_says_where_how_far_why_and_how_to_see_it_again() -> None:
    mismatch = Mismatch(
        kind="value",
        index=(2, 7),
        expected=1.0,
        actual=1.5,
        allowed=1e-6,
        mismatched=1,
        total=64,
    )
    line = explain_finding(finding(mismatch))
    assert line.startswith("ffn_out-3 = MUL_MAT: 1 of 64 elements off")
    for part in ("worst [2, 7]", "is 1.5, expected 1 (allowed 1e-06)"):
        assert part in line
    detail = {
        "reason": "172 products",
        "err_local": 0.5,
        "err_in": 1e-7,
        "err_out": 0.25,
        "rest": "on its own inputs 268 of 269 segments agree",
    }
    text = explain(verdict(summary=line, detail=detail))
    for part in ("172 products", "0.5 off", "1.0e-07 comes in", "2.5e-01 goes out"):
        assert part in text
    assert "on its own inputs 268 of 269 segments agree" in text
    assert text.endswith("again: lockstep check m")


@pytest.mark.parametrize(
    ("mismatch", "text"),
    [
        (None, "ffn_out-3 (step 1) agrees"),
        (
            Mismatch(kind="missing"),
            "ffn_out-3 (step 1) = MUL_MAT: missing, though the engine says that it shows it",
        ),
        (Mismatch(kind="shape", detail="got (1,)"), "ffn_out-3 (step 1) = MUL_MAT: got (1,)"),
    ],
)
def test_what_has_no_worst_element_is_explained_too(mismatch: Mismatch | None, text: str) -> None:
    assert explain_finding(finding(mismatch, step=1)) == text


def test_of_a_wrong_shape_no_distance_is_said() -> None:
    detail = {"reason": "the shape", "err_local": float("inf"), "err_in": 0.0, "err_out": 0.5}
    assert " off" not in explain(verdict(summary="got (32, 3)", detail=detail))
    assert " off" in explain(verdict(summary="1 of 64", detail=detail | {"err_local": 0.5}))


def test_every_status_has_a_mark() -> None:
    from typing import get_args

    from lockstep.harness.records import Status

    assert set(MARKS) == set(get_args(Status))
    assert len(set(MARKS.values())) == len(MARKS)


def test_a_step_is_named_unless_it_is_the_prompt() -> None:
    assert site_name(Site(step=0, layer=None, name="embd")) == "embd"
    assert site_name(Site(step=2, layer=1, name="kq")) == "kq-1 (step 2)"


def test_divergences_with_one_key_are_folded_and_the_others_stay() -> None:
    def at(layer: int, key: str) -> Verdict:
        return verdict(key=key, detail={"site": "kq", "layer": layer, "step": 0})

    agreed = verdict(status="agreed", key="a")
    groups = fold([at(0, "a"), at(1, "b"), agreed, at(2, "a"), verdict(status="crashed", key="")])
    assert [len(group) for group in groups] == [2, 1, 1]
    assert more_like(groups[0]) == "\n  and 1 more like it: kq-2"
    assert more_like(groups[1]) == ""


@pytest.mark.parametrize(
    ("log", "shown"),
    [
        (["a", "GGML_ASSERT(x) failed", "Fatal Python error: Aborted", "  File ..."], 2),
        ([f"line {i}" for i in range(9)], 6),
        (["Fatal Python error: Segmentation fault", "  File ..."], 2),
        ([], 0),
    ],
)
def test_an_abort_shows_its_message_rather_than_where_python_stood(
    log: list[str], shown: int
) -> None:
    words = last_words(log)
    assert len(words) == shown
    assert words[-1:] == [log[1] if "GGML_ASSERT" in " ".join(log) else log[-1]] if log else True


STACK = [f"    at frame {i}" for i in range(9)]


@pytest.mark.parametrize(
    "message",
    [
        "Error: type Q4_K is not supported",
        "Uncaught TypeError: x is undefined",
        'Exception in thread "main" java.io.IOException: no such file',
        "panic: runtime error: index out of range [3] with length 3",
        "thread 'main' panicked at src/main.rs:3:5:",
        "System.ArgumentException: no such tensor",
    ],
)
def test_a_message_is_shown_whatever_stack_comes_behind_it(message: str) -> None:
    words = last_words(["loading", message, *STACK, "Node.js v18"])
    assert words == [message, *STACK[:3], "...", "Node.js v18"]


def test_a_message_after_which_an_engine_went_on_hides_no_later_one() -> None:
    steps = [f"layer {i} of 20 is loaded" for i in range(20)]
    log = ["Error: no such cache: going on without", *steps, "GGML_ASSERT(n > 0) failed", "Aborted"]
    assert last_words(log) == log[-6:]


def test_a_message_that_is_near_the_end_is_shown_with_what_was_said_before() -> None:
    log = [*STACK, "ValueError: bad"]
    assert last_words(log) == log[-6:]


# --- lines that are cut -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "most", "said"),
    [
        ("token 116: -0.163828105e-7", 20, "token 116:…"),
        ("63 of 64 choices agree; at fault: subject", 37, "63 of 64 choices agree; at fault:…"),
        ("it fits", 7, "it fits"),
        ("deadbeef" * 20, 9, "deadbeef…"),
    ],
)
def test_a_line_is_cut_behind_a_word_and_says_so(text: str, most: int, said: str) -> None:
    assert cut(text, most) == said
    assert len(said) <= most


def test_an_excused_line_ends_in_no_half_number(tmp_path: Any) -> None:
    summary = "known (slow): " + "in the oracle's text " * 6 + "token 116: -0.16382810592651367"
    row = Verdict(suite="decode", case="m", status="excused", summary=summary, detail={})
    result = RunResult(verdicts=[row], engines=(), code=0, seconds=1.0, folder=tmp_path)
    (line,) = excused_lines(result)
    assert line.endswith("token 116:…")


# --- the last line ------------------------------------------------------------------------------


def test_a_run_that_conforms_says_what_it_excuses(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else "everything compared agrees" stands under what does not."""
    rows = [
        Verdict(suite="fuzz-gguf", case="m", status="excused", summary="llama.cpp file crashes"),
        Verdict(suite="fuzz-gguf", case="m", status="agreed", summary="7 files"),
    ]
    result = RunResult(verdicts=rows, engines=(), code=0, seconds=1.0, folder=tmp_path)
    Terminal(quiet=True).summary(result)
    said = capsys.readouterr().out
    assert "everything compared agrees, but for 1 known or explained in 1.0 s" in said
    Terminal(quiet=True).summary(replace(result, verdicts=rows[1:]))
    assert "but for" not in capsys.readouterr().out


# --- one and many -------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "said"), [(1, "1 weight differs;"), (2, "2 weights differ;")])
def test_one_weight_differs_and_two_differ(n: int, said: str) -> None:
    tensor = TensorSummary(name="w", ne=(4,), type="F32", offset=0, n_bytes=16)
    context: Any = SimpleNamespace(verdict=lambda *args, **more: args[2])
    right = np.zeros(4, np.float32)
    wrong = right.copy()
    wrong[:n] = 1
    assert said in str(divergence(context, tensor, 0, right, wrong))


@pytest.mark.parametrize(("size", "said"), [(0, "the empty text or no ids"), (3, "a case of 3 ")])
def test_a_case_of_nothing_is_said_in_words(size: int, said: str) -> None:
    result: Any = SimpleNamespace(caught=True, size=size, located=True, most=8)
    assert said in in_words(result)


def test_a_node_is_named_by_its_own_name_though_it_is_part_of_a_layer() -> None:
    """`result_embd_pooled-1` had been named, which no engine can show."""
    pooled = {"site": "result_embd_pooled", "layer": 1, "step": 2, "node": "result_embd_pooled"}
    assert place_in(pooled) == "result_embd_pooled (step 2)"
    assert place_in({"site": "kq", "layer": 1, "step": 0}) == "kq-1"  # of a version before
