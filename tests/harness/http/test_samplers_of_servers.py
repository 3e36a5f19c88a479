"""Servers are asked for their samplers over HTTP, and the suite names the wrong sampler."""

from pathlib import Path
from typing import Any

import pytest

from lockstep.engine.registry import import_members
from lockstep.harness.mutants.parts.wrong_samplers import WRONG_SAMPLERS
from lockstep.harness.records import PART
from lockstep.harness.samplers import served
from lockstep.harness.samplers.drawn import NextToken
from lockstep.harness.samplers.drawn_cases import stages_for
from tests.fake_server import NATIVE, OPENAI, serving
from tests.harness.http.conftest import checked

import_members("lockstep.harness.mutants")


@pytest.fixture(autouse=True)
def _few_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    def few(token: NextToken) -> dict[str, list[Any]]:
        found = stages_for(token)
        return {name: found[name][:2] for name in ("top_k", "temp", "top_n_sigma")}

    monkeypatch.setattr(served, "stages_for", few)


@pytest.mark.parametrize("pages", [NATIVE, OPENAI])
def test_wrong_sampler_of_a_server_is_named(pages: frozenset[str], model: Path) -> None:
    wrong = WRONG_SAMPLERS["mutant:temp-multiplies"]
    with serving(model, pages=pages, takes_ids=False, samplers=wrong) as url:
        found = {v.detail[PART]: v for v in checked(model, url, "samplers")}
    assert {part for part, v in found.items() if v.status == "diverged"} == {"temp"}
    assert found["temp"].detail["at_fault"] == "subject"
    assert found["dist"].status == found["top_k"].status == "agreed"
    unsaid = found["unsaid"].detail["samplers"] if pages is OPENAI else []
    assert ("top_n_sigma" in unsaid) == (pages is OPENAI)


def test_server_with_other_logits_is_accused_of_no_sampler(model: Path) -> None:
    def change(path: str, said: Any) -> Any:
        listed = said.get("completion_probabilities", ()) if path == "/completion" else ()
        for row in listed[0].get("top_logprobs", ()) if listed else ():
            row["logprob"] *= 2
        return said

    with serving(model, change) as url:
        found = checked(model, url, "samplers")
    assert [v.status for v in found] == ["not-compared"]


def test_server_gets_no_draws_unless_the_suite_is_named(model: Path) -> None:
    seen: list[str] = []

    def refuses(body: Any) -> str:
        seen.extend(key for key in body if key == "seed")
        return ""

    with serving(model, refuses=refuses) as url:
        found = checked(model, url)
    assert not seen
    assert all(v.suite != "samplers" for v in found)
