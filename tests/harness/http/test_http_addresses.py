"""A server's address, and obstacles to an answer: a certificate, a missing /v1, no free slot, an
error message.
"""

import ssl
from collections.abc import Callable
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

from lockstep.engine.errors import Unsupported
from lockstep.harness import records
from lockstep.harness.check.check import BadInput
from lockstep.harness.context.runner import Runner, is_outside
from lockstep.harness.context.suite import NoAnswer
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.http import client
from lockstep.harness.http import session as asking
from lockstep.harness.http.client import address_of
from lockstep.harness.http.session import AGAIN_SECONDS, HttpSession, is_address, preset_for
from lockstep.harness.processes.wire import WireError
from lockstep.harness.records import EXACT, Answered
from tests.fake_server import NATIVE, OPENAI, Busy, serving
from tests.harness.http.conftest import checked

PAST = "Wed, 21 Oct 2015 07:28:00 GMT"


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the waits, but do not wait."""
    found: list[float] = []
    monkeypatch.setattr(asking, "sleep", found.append)
    return found


class Untrusted(HTTPSConnection):
    """A connection that fails as the ssl module does with a self-signed certificate."""

    def connect(self) -> None:
        error = ssl.SSLCertVerificationError(1, "certificate verify failed")
        error.verify_message = "self-signed certificate"
        raise error


def test_untrusted_certificate_does_not_accuse_answers(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "HTTPSConnection", Untrusted)
    with pytest.raises(BadInput, match=r"not trusted: self-signed certificate \(set SSL_CERT_FILE"):
        checked(model, "https://localhost:1", "text")


def test_message_names_a_missing_v1_in_the_address(model: Path) -> None:
    with serving(model, pages=OPENAI) as url:
        with pytest.raises(BadInput, match=r"HTTP 404: File Not Found; .*need /v1"):
            checked(model, f"openai:{url}", "text")
        with pytest.raises(
            BadInput, match=r"HTTP 404: File Not Found; the server has none"
        ) as said:
            checked(model, f"openai:{url}/v1/v1", "text")
        assert "need /v1" not in str(said.value)


def test_server_error_is_shown_for_any_status(model: Path) -> None:
    wrong = {"error": {"message": "context too small"}}
    with serving(model, lambda path, said: wrong if path == "/completion" else said) as url:
        (found,) = checked(model, url, "text")
    assert found.status == "malformed"
    assert "got 'error: context too small'" in found.summary


def test_check_waits_for_a_free_slot(model: Path) -> None:
    """The server answers 503 to the first of each pair of questions."""
    pages: list[str] = []

    def busy(path: str, said: Any) -> Any:
        pages.append(path)
        return Busy(said) if path == "/completion" and pages.count(path) % 2 else said

    with serving(model, busy) as url, HttpSession(url, None, EXACT, time_limit=20) as session:
        outcome = session.ask("greedy", [1], 2)
    assert isinstance(outcome, Answered), outcome
    assert pages.count("/completion") == 2


# --- a server in a hurry --------------------------------------------------------------------------


def hurried(path: str, wrong: Callable[[int], Busy | None]) -> Callable[..., Any]:
    """Return a function that changes answers of a page: `wrong` returns the replacement for the
    n-th request (from 1)."""
    pages: list[str] = []

    def change(page: str, said: Any) -> Any:
        pages.append(page)
        other = wrong(pages.count(page)) if page == path else None
        return said if other is None else other

    return change


@pytest.mark.parametrize("status", [408, 429, 503])
def test_busy_server_is_asked_again_after_its_delay(
    status: int, model: Path, waits: list[float]
) -> None:
    """The server first asks for three seconds, and then names a date that has passed."""
    first, then = Busy(status=status, after="3"), Busy(status=status, after=PAST)
    busy = hurried("/completion", lambda n: {1: first, 2: then}.get(n))
    with serving(model, busy) as url, HttpSession(url, None, EXACT, time_limit=20) as session:
        outcome = session.ask("greedy", [1], 2)
    assert isinstance(outcome, Answered), outcome
    assert waits == [3, AGAIN_SECONDS]


@pytest.mark.parametrize("status", [408, 429])
def test_permanently_busy_server_is_a_timeout(status: int, model: Path, waits: list[float]) -> None:
    """An earlier version called the engine conforming, because it counted unanswered questions as
    missing levels."""
    said = Busy({"error": {"message": "slow down"}}, status)
    with serving(model, hurried("/completion", lambda n: said)) as url:
        found = checked(model, url, "text")
    assert ({v.status for v in found}, exit_code(found)) == ({"not-compared"}, 3)
    assert f"did not answer generate: HTTP {status}: slow down (asked 4 times)" in (
        found[0].summary
    )
    assert waits == [0.5, 1, 2]


@pytest.mark.parametrize("suite", ["logprobs", "text"])
@pytest.mark.parametrize(
    ("status", "word"), [(429, "not answer"), (403, "not answer"), (413, "HTTP 413")]
)
def test_missing_answer_to_long_prompts_spoils_the_exit_code(
    suite: str, status: int, word: str, model: Path, waits: list[float]
) -> None:
    with serving(model, to_long=Busy(status=status)) as url:
        found = checked(model, url, suite)
    assert exit_code(found) == 3, found
    assert found[0].status == "agreed"  # other parts are compared
    assert any(word in v.summary for v in found if v.status in ("not-compared", "diverged")), found


def test_wait_beyond_the_time_limit_is_refused(model: Path, waits: list[float]) -> None:
    for status in (429, 503):
        later = Busy(status=status, after="3600")
        with serving(model, hurried("/completion", lambda n, s=later: s)) as url:
            session = HttpSession(url, None, EXACT, time_limit=20)
            outcome = session.ask("greedy", [1], 2)
        assert isinstance(outcome, records.Busy), outcome
        assert "asked once; it asks to wait 3600 s, beyond the time limit" in outcome.message
    assert not waits


def test_busy_answer_at_the_start_is_not_a_missing_level(model: Path, waits: list[float]) -> None:
    """Lists of candidates are tested last. If the server was busy then, an earlier version assumed
    without a note that the server has no lists."""
    for status in (408, 429):
        busy = hurried("/v1/completions", lambda n, s=status: Busy(status=s) if n > 2 else None)
        with serving(model, busy, OPENAI) as url, pytest.raises(NoAnswer, match="asked 4") as end:
            checked(model, url, "logprobs", "text")
        assert end.value.status == "not-compared"


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        *(("7", 7.0), (" 0 ", 0.0), ("9" * 5000, 999_999_999.0), (PAST, 0.0)),
        *((None, None), ("", None), ("-1", None), ("1.5", None), ("soon", None), ("٣", None)),
        ("Wed, 99 Foo 2015 07:28:00 GMT", None),
    ],
)
def test_retry_after_is_a_number_or_a_date(said: str | None, seconds: float | None) -> None:
    assert client.seconds_of(said) == seconds


def test_address_names_a_server_with_the_server_preset() -> None:
    assert is_address("http://localhost:8080")
    assert is_address("openai:https://example.org/v1#m")
    assert is_address("HTTP://LOCALHOST")
    assert not is_address("./http")
    assert is_outside("http://localhost:8080")
    assert (preset_for("http://x:1"), preset_for("reference")) == ("default", "exact")
    assert str(address_of("http://[::1]:80/a/")) == "http://[::1]:80/a"
    assert str(address_of("http://x/a b/%C3%A4/ä")) == "http://x:80/a%20b/%C3%A4/%C3%A4"
    session = Runner(time_limit=7).open("http://localhost:8080", None, EXACT)
    assert isinstance(session, HttpSession)
    assert session.time_limit == 7


@pytest.mark.parametrize("url", ["http://", "http://x:port", "http://x:99999", "http://x/?a=b"])
def test_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(Unsupported, match="is not an address"):
        address_of(url)


def test_native_and_openai_requests_are_disjoint() -> None:
    assert NATIVE.isdisjoint(OPENAI - {"/v1/models"})


def test_a_byte_order_mark_before_an_answer_is_ignored() -> None:
    assert client.json_of(b'\xef\xbb\xbf{"tokens":[1,2]}') == {"tokens": [1, 2]}
    with pytest.raises(WireError, match="expected JSON"):
        client.json_of(b'\xff\xfe{"tokens":[1,2]}')
