"""Servers that offer only `/v1/chat/completions`: the prompt is the user's message in a chat.

The server applies the model's template to the message, so the oracle gets the resulting text
(harness.context.chat_template). Such a server shows only greedy text.
"""

from dataclasses import dataclass

from lockstep.harness.http.base import About, Ask, as_bytes, member, text, utf8
from lockstep.harness.http.client import StatusRefused
from lockstep.harness.protocol.messages import printable

ANY_MODEL = "default"  # servers with one model accept any name


@dataclass(kw_only=True)
class Chat:
    """A chat endpoint. `name` is the model's name, for a server with several models."""

    name: str = ""

    def about(self, ask: Ask) -> About:
        self.name = self.name or model_name(ask)
        self.generate(ask, b"Once", 1)
        return About(
            version=printable(f"chat server of {self.name}"),
            build="",
            levels=("generate",),
            text_only=True,
            chat_only=True,
        )

    def generate(self, ask: Ask, prompt: bytes, n: int) -> bytes:
        """Return the greedy text of n tokens that answers a single message."""
        (words,) = utf8([prompt])
        messages = [{"role": "user", "content": words}]
        body = {"model": self.name, "messages": messages, "max_tokens": n, "temperature": 0}
        said = ask("POST", "/chat/completions", body)
        return as_bytes(text(member(said, "choices", 0, "message"), "content"))


def model_name(ask: Ask) -> str:
    """Return the name of the first model that the server lists, or any name if it lists none."""
    try:
        return text(ask("GET", "/models"), "data", 0, "id")
    except StatusRefused:
        return ANY_MODEL
