"""A server's address, and what may stand between it and an answer: a certificate, a missing /v1, no
free slot, an error in words."""

import ssl
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

from lockstep.engine.errors import Unsupported
from lockstep.harness.check.check import BadInput
from lockstep.harness.context.runner import Runner, is_outside
from lockstep.harness.http import client
from lockstep.harness.http.client import address_of
from lockstep.harness.http.session import HttpSession, is_address, preset_for
from lockstep.harness.records import EXACT, Answered, Verdict
from tests.fake_server import NATIVE, OPENAI, Busy, serving
from tests.harness.check.test_check import plan_for, verdicts_of
from tests.models import builtin


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return builtin("f32", tmp_path_factory.mktemp("models"))


def checked(model: Path, engine: str, *suites: str) -> list[Verdict]:
    return verdicts_of(plan_for(model, engine=engine, suites=suites, n_steps=5))


class Untrusted(HTTPSConnection):
    """As the ssl module ends a handshake with a self-signed certificate."""

    def connect(self) -> None:
        error = ssl.SSLCertVerificationError(1, "certificate verify failed")
        error.verify_message = "self-signed certificate"
        raise error


def test_a_certificate_that_is_not_trusted_is_no_fault_of_the_answers(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "HTTPSConnection", Untrusted)
    with pytest.raises(BadInput, match=r"not trusted: self-signed certificate \(SSL_CERT_FILE"):
        checked(model, "https://localhost:1", "text")


def test_the_v1_that_an_address_lacks_is_named(model: Path) -> None:
    with serving(model, pages=OPENAI) as url:
        with pytest.raises(BadInput, match=r"HTTP 404: File Not Found; to the address of .* /v1"):
            checked(model, f"openai:{url}", "text")
        with pytest.raises(BadInput, match=r"HTTP 404: File Not Found$"):
            checked(model, f"openai:{url}/v1/v1", "text")


def test_what_a_server_says_of_an_error_is_shown_whatever_the_status(model: Path) -> None:
    wrong = {"error": {"message": "context too small"}}
    with serving(model, lambda path, said: wrong if path == "/completion" else said) as url:
        (found,) = checked(model, url, "text")
    assert found.status == "malformed"
    assert "got 'error: context too small'" in found.summary


def test_a_server_without_a_free_slot_is_waited_for(model: Path) -> None:
    """It answers 503 to the first of every two questions."""
    pages: list[str] = []

    def busy(path: str, said: Any) -> Any:
        pages.append(path)
        return Busy(said) if path == "/completion" and pages.count(path) % 2 else said

    with serving(model, busy) as url, HttpSession(url, None, EXACT, time_limit=20) as session:
        outcome = session.ask("greedy", [1], 2)
    assert isinstance(outcome, Answered), outcome
    assert pages.count("/completion") == 2


def test_an_address_names_a_server_and_its_preset_is_what_servers_start_with() -> None:
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
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(Unsupported, match="is no address"):
        address_of(url)


def test_pages_of_a_native_server_are_all_that_is_asked_of_it() -> None:
    assert NATIVE.isdisjoint(OPENAI - {"/v1/models"})
