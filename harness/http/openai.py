"""Servers with OpenAI's completions endpoint, which returns text, and a few candidates as strings
or bytes.

Prompts are sent as ids if the server's count of prompt tokens shows that it accepts ids. Otherwise
prompts are texts, which the server tokenizes itself. A server that accepts only ids is not asked to
continue a text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Any

from lockstep.engine.errors import Unsupported
from lockstep.harness.http.base import (
    About,
    Ask,
    as_bytes,
    candidates,
    member,
    number,
    one_way,
    text,
    utf8,
)
from lockstep.harness.http.client import StatusRefused
from lockstep.harness.http.drawing import PROMISED, openai_options
from lockstep.harness.protocol.messages import printable
from lockstep.harness.records import DrawAnswer, DrawRequest

PROBE = [1, 2, 3, 4, 5]  # ids in every vocabulary
TEXT = "Once"
NOT_SO = (400, 422)  # the server does not understand the request, or does not offer this
SIZES = (1024, 100, 20, 10, 5, 1)  # sizes to try, because servers limit lists
# parameters beyond OpenAI's interface; some servers penalise repetition by default
PLAIN = {"repeat_penalty": 1.0, "repetition_penalty": 1.0}


@dataclass(kw_only=True)
class OpenAi:
    """An OpenAI-compatible server. `name` is the model's name, for a server with several models."""

    name: str = ""
    most: int = 0  # largest list that the server returns
    takes_ids: bool = False
    # PLAIN, or empty if the server refuses it
    plain: Mapping[str, float] = field(default_factory=dict)

    def about(self, ask: Ask) -> About:
        self.name = self.name or only_model(ask)
        self.takes_ids = self.counts(ask, PROBE, len(PROBE))
        self.plain = PLAIN if self.takes_plain(ask) else {}
        if not self.plain and not self.takes_ids:
            # a server that refuses this too gives the reason, and is not asked further
            self.complete(ask, self.probe, 1)
        self.most = next((k for k in SIZES if self.lists(ask, k)), 0)
        return About(
            version=printable(f"OpenAI-compatible server of {self.name}"),
            build="",
            levels=(
                *("generate",) * self.takes_texts(ask),
                *("logprobs",) * bool(self.most),
                "draw",
            ),
            text_only=not self.takes_ids,
        )

    def generate(self, ask: Ask, prompt: bytes, n: int) -> bytes:
        (words,) = utf8([prompt])
        return as_bytes(text(self.complete(ask, words, n), "text"))

    def logprobs(
        self, ask: Ask, prefixes: Sequence[Sequence[int] | bytes], k: int
    ) -> list[list[tuple[int | bytes, float]]]:
        return [
            list_of_choice(self.complete(ask, in_json(prefix), 1, logprobs=min(k, self.most)))
            for prefix in prefixes
        ]

    def draw(self, ask: Ask, request: DrawRequest) -> DrawAnswer:
        """Draw a token, which is the text that the server adds. Lists of candidates in the answer
        show the model's probabilities before samplers, so they are not used."""
        options = openai_options(request.chain, beyond=bool(self.plain))
        said = self.complete(ask, in_json(request.prompt), 1, seed=request.seed, **options)
        # empty for a plain draw, because OpenAI promises no seeds
        names = {stage["sampler"] for stage in request.chain[:-1]}
        promised = bool(names) and names <= PROMISED
        return DrawAnswer(token=as_bytes(text(said, "text")) or None, promised=promised)

    def complete(self, ask: Ask, prompt: Any, n: int, **more: Any) -> Any:
        """Return the only choice in the server's answer."""
        body = {"model": self.name, "prompt": prompt, "max_tokens": n, "temperature": 0}
        body |= {**self.plain, **more}
        return member(ask("POST", "/completions", body), "choices", 0)

    def counts(self, ask: Ask, prompt: Any, n: int) -> bool:
        """Return True if the server counts n tokens in the prompt."""
        body = {"model": self.name, "prompt": prompt, "max_tokens": 1, "temperature": 0}
        try:
            said = ask("POST", "/completions", body)
        except StatusRefused as error:
            if error.status in (401, 403, 404):
                raise
            return False
        usage = said.get("usage") if type(said) is dict else None
        one = type(said.get("choices")) is list and len(said["choices"]) == 1 if usage else False
        return one and type(usage) is dict and usage.get("prompt_tokens") == n

    def takes_plain(self, ask: Ask) -> bool:
        try:
            self.complete(ask, self.probe, 1, **PLAIN)
        except StatusRefused:
            return False
        return True

    def takes_texts(self, ask: Ask) -> bool:
        """Return True if the server accepts texts. vLLM can be started without a tokenizer."""
        try:
            self.complete(ask, TEXT, 1)
        except StatusRefused as error:
            return not self.takes_ids or error.status not in NOT_SO
        return True

    @property
    def probe(self) -> list[int] | str:
        return PROBE if self.takes_ids else TEXT

    def lists(self, ask: Ask, k: int) -> bool:
        """Return True if the server answers with a list of k candidates."""
        try:
            return bool(list_of_choice(self.complete(ask, self.probe, 1, logprobs=k)))
        except StatusRefused:
            return False


def only_model(ask: Ask) -> str:
    """Return the server's model. Raises Unsupported if the server has several models, because then
    the user must name one."""
    names = [text(row, "id") for row in member(ask("GET", "/models"), "data")]
    if len(names) != 1:
        known = ", ".join(printable(name)[:80] for name in names[:8]) or "none"
        raise Unsupported(f"add one of the server's models after #, as in .../v1#NAME: {known}")
    return names[0]


def in_json(prefix: Sequence[int] | bytes) -> list[int] | str:
    return prefix.decode() if isinstance(prefix, bytes) else list(map(int, prefix))


def list_of_choice(choice: Any) -> list[tuple[int | bytes, float]]:
    """Return the candidates for the first token, most likely first. The answer has the newer form
    (`content`) or the older form (`top_logprobs`). Neither form promises an order: the members of a
    JSON object have no order, and some servers put the sampled token last."""
    return sorted(in_any_order(choice), key=lambda row: (isnan(row[1]), -row[1]))


def in_any_order(choice: Any) -> list[tuple[int | bytes, float]]:
    said = choice.get("logprobs") if type(choice) is dict else None
    if type(said) is not dict:
        return []
    if content := said.get("content"):
        return one_way(candidates(member(content, 0, "top_logprobs")))
    rows = said.get("top_logprobs")
    if type(rows) is not list or not rows or type(rows[0]) is not dict:
        return []
    return [(as_bytes(name), number(value)) for name, value in rows[0].items()]
