"""Text for users: no text of a file or a model reaches the terminal unescaped."""

import io
from typing import Any

import pytest
import typer

from lockstep.harness.cli.terminal import Terminal, fold, more_like
from lockstep.harness.records import Verdict
from lockstep.harness.report.text import (
    MARKS,
    cut,
    last_words,
    place_in,
    printable,
)

HOSTILE = "[red]x[/red] :smile: \x1b[2J\x1b]0;title\x07 \r\x08 \x9b31m \u202e \udc80 \x00"


class Screen(io.StringIO):
    """A standard stream that claims to be a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def verdict(**changes: Any) -> Verdict:
    known: dict[str, Any] = {"suite": "trace", "case": "m.gguf", "status": "diverged"}
    return Verdict(**(known | {"summary": "they differ", "repro": "lockstep check m"} | changes))


def is_harmless(text: str) -> bool:
    return all(c.isprintable() or c in "\n\t" for c in text)


def test_text_that_could_control_a_terminal_is_escaped() -> None:
    shown = printable(HOSTILE)
    assert is_harmless(shown)
    assert "\\x1b[2J" in shown
    assert "\\udc80" in shown
    assert "\\u202e" in shown


def test_plain_text_stays_unchanged() -> None:
    text = "Größe 你好 [red] \\x1b 'quoted'"
    assert printable(text) == text
    assert printable("a\nb\tc") == "a\\nb\\tc"
    assert printable("a\nb\tc", keep="\n\t") == "a\nb\tc"


def test_verdict_on_a_hostile_file_is_escaped_and_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    Terminal(quiet=False).verdict(verdict(case=HOSTILE, summary=HOSTILE))
    shown = screen.getvalue()
    assert is_harmless(shown)
    assert shown.count("\n") == 1
    assert shown.count("[red]x[/red] :smile:") == 2  # markup and emoji codes are shown as text


def test_a_models_text_is_escaped_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stdout", screen)
    Terminal(quiet=True).line(f"[bold]one\ttwo\nthree {HOSTILE}")
    assert is_harmless(screen.getvalue())
    assert screen.getvalue().startswith("[bold]one\ttwo\nthree [red]x")


def test_model_text_goes_into_a_pipe_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    text = "tab\there \x1b[2J :smile: [red] " + "long " * 100
    Terminal(quiet=True).data(text)
    assert capsys.readouterr().out == text + "\n"


def test_refusal_of_a_hostile_file_is_one_harmless_line(
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


def test_unforeseen_error_is_a_defect_of_lockstep_with_exit_code_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(typer.Exit) as ending, Terminal(quiet=True):
        raise ZeroDivisionError("by zero")
    assert ending.value.exit_code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "Lockstep failed, please report this" in line
    assert "ZeroDivisionError: by zero (test_text.py, line" in line


def test_every_status_has_a_mark() -> None:
    from typing import get_args

    from lockstep.harness.records import Status

    assert set(MARKS) == set(get_args(Status))
    assert len(set(MARKS.values())) == len(MARKS)


def test_divergences_with_one_key_are_folded_and_others_are_listed() -> None:
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
def test_abort_shows_its_message_instead_of_the_python_stack(log: list[str], shown: int) -> None:
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
def test_message_is_shown_before_any_stack(message: str) -> None:
    words = last_words(["loading", message, *STACK, "Node.js v18"])
    assert words == [message, *STACK[:3], "...", "Node.js v18"]


def test_survived_error_message_hides_no_later_one() -> None:
    steps = [f"layer {i} of 20 is loaded" for i in range(20)]
    log = ["Error: no such cache: going on without", *steps, "GGML_ASSERT(n > 0) failed", "Aborted"]
    assert last_words(log) == log[-6:]


def test_message_near_the_end_is_shown_with_the_lines_before() -> None:
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
def test_long_line_is_cut_after_a_word_with_a_mark(text: str, most: int, said: str) -> None:
    assert cut(text, most) == said
    assert len(said) <= most


# --- the last line ------------------------------------------------------------------------------


# --- one and many -------------------------------------------------------------------------------


def test_node_keeps_its_own_name_as_part_of_a_layer() -> None:
    """An earlier version added the layer to a name, as in `result_embd_pooled-1`. No engine can
    show such a node."""
    pooled = {"site": "result_embd_pooled", "layer": 1, "step": 2, "node": "result_embd_pooled"}
    assert place_in(pooled) == "result_embd_pooled (step 2)"
    # reports of earlier versions have this form
    assert place_in({"site": "kq", "layer": 1, "step": 0}) == "kq-1"
