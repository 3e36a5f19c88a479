"""A server under test, asked over HTTP. Its answers are untrusted, and it keeps running after any
answer."""

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import prod
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from lockstep.engine.errors import EngineError, Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.tokenizers.base import tokenizer_of
from lockstep.harness.answers import MalformedAnswer
from lockstep.harness.asking.session import Session, in_words
from lockstep.harness.http.base import About, Ask, Complaint, Server, info_of
from lockstep.harness.http.chat import Chat
from lockstep.harness.http.client import (
    LACKING,
    REFUSALS,
    Address,
    StatusRefused,
    address_of,
    exchange,
)
from lockstep.harness.http.llama_server import LlamaServer
from lockstep.harness.http.openai import OpenAi
from lockstep.harness.processes.wire import Closed, WireError
from lockstep.harness.protocol.messages import printable
from lockstep.harness.records import (
    CONTROL_VECTOR,
    DEFAULT,
    EXACT,
    LORA,
    Answered,
    Busy,
    Crashed,
    EngineInfo,
    Malformed,
    Outcome,
    Rejected,
    Settings,
    TimedOut,
    Unanswerable,
)

OPENAI = "openai:"
SERVE = "serve:"  # prefix of a command that starts a server (harness.http.served)
START_SECONDS = 300.0  # for a server that is loading its model
AGAIN_SECONDS = 0.5
LOADING = 503  # status while a model is loading, or if no slot is free
# status of a server that was too slow, or that got too many requests; repeating helps little, so it
# is tried only a few times
HURRIED = (408, 429)
TIMES = 4
SHOWN = 400  # characters of a request in a message: a prompt of seventy ids with all parameters
CLOSED_TO_US = (401, 403)


def is_address(engine: str) -> bool:
    """Return True if the engine's name is the address of a server."""
    return engine.removeprefix(OPENAI).lower().startswith(("http://", "https://"))


def is_served(engine: str) -> bool:
    """Return True if the engine's name is a command that starts a server."""
    return engine.startswith(SERVE)


def preset_for(engine: str) -> str:
    """Return the oracle's default preset for this engine. The settings of a server are unknown, but
    most servers start like llama-server, which is `default`."""
    return DEFAULT.name if is_address(engine) or is_served(engine) else EXACT.name


class HttpSession(Session):
    """A session with a server. `http://HOST:PORT` means llama-server, or an OpenAI-compatible
    server under /v1. `openai:http://HOST:PORT/v1#MODEL` always means an OpenAI-compatible
    server."""

    takes_several = True

    def __init__(
        self,
        engine: str,
        model: Path | None,
        settings: Settings,
        *,
        time_limit: float,
        start_limit: float = START_SECONDS,
    ) -> None:
        self.name, self.model, self.settings = engine, model, settings
        self.time_limit, self.start_limit = time_limit, start_limit
        self.to(engine)
        # by thread: the last request, for messages about its answer
        self.last = threading.local()
        self.last.request = ""

    def to(self, engine: str) -> None:
        """Use the server at this address from now on. Forget all facts about the previous
        server."""
        url, _, self.chosen = engine.removeprefix(OPENAI).partition("#")
        self.address = address_of(url)
        self.only_openai = engine.startswith(OPENAI) or self.address.base.endswith("/v1")
        self.server: Server | None = None
        self.lacking: list[str] = []  # requests for which the server has no page
        self.said: EngineInfo | None = None

    def _ask(
        self,
        question: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        consume: Callable[[Any], None] | None = None,
    ) -> Outcome:
        try:
            return self.ask_server(question, args, kwargs)
        except Closed as error:
            return self.outcome_of_closing(error)

    def ask_server(
        self,
        question: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        more_seconds: float = 0.0,
    ) -> Outcome:
        """Start the server if necessary, and ask it the question. Raises Closed."""
        limit = self.start_limit
        try:
            info = self.start_session(monotonic() + limit)
            if question == "describe":
                return Answered(value=info, seconds=0.0)
            if question not in (info.levels or ()):
                text = f"{self.name} does not offer {in_words(question)}"
                return Unanswerable(message=text, declared=True)
            limit = self.time_limit + more_seconds
            started = monotonic()
            method = getattr(self.server, question)
            value = method(self.asking(self.address, started + limit), *args, **kwargs)
            return Answered(value=value, seconds=monotonic() - started)
        except TimeoutError:
            return TimedOut(seconds=limit)
        except StatusRefused as error:
            return self.refusal(error)
        except StillBusy as error:
            return self.busy(error)
        except (WireError, MalformedAnswer) as error:
            text = printable(f"{error}; asked: {self.last.request}")
            return Malformed(message=text, said=isinstance(error, Complaint))
        except UnicodeDecodeError:
            text = "a text that is not UTF-8 cannot be sent as JSON"
            return Unanswerable(message=text, declared=True)
        except Unsupported as error:
            return Unanswerable(message=str(error))

    def ask_at_once(
        self, question: str, every: Sequence[tuple[Any, ...]], *, more_seconds: float
    ) -> list[Outcome]:
        """Ask each question over its own connection to a server that has answered before.

        A failed question of a living server counts as busy. This includes connections that the
        server closes without an answer, and errors with a success status.
        """

        def one(args: tuple[Any, ...]) -> Outcome:
            try:
                outcome = self.ask_server(question, args, {}, more_seconds)
            except Closed as error:
                return Busy(message=str(error))
            if isinstance(outcome, Crashed) or (isinstance(outcome, Malformed) and outcome.said):
                return Busy(message=outcome.message)
            return self._checked(question, args, {}, outcome)

        with ThreadPoolExecutor(len(every)) as threads:
            return list(threads.map(one, every))

    def asking(self, address: Address, deadline: float) -> Ask:
        def ask(method: str, path: str, body: Any = None) -> Any:
            self.last.request = in_short(method, path, body)
            get = partial(exchange, address, method, path, body, deadline)
            try:
                said = waited_for(get, deadline)
            except StatusRefused as error:
                if error.status in LACKING:
                    self.lacking.append(f"{method} {address.base}{path}")
                raise
            prompt = body.get("prompt") if type(body) is dict else None
            if type(prompt) is str and (n := tokens_counted(said)) is not None:
                self.counted[prompt.encode()] = n
            return said

        return ask

    def outcome_of_closing(self, error: Closed) -> Outcome:
        if self.said is not None:
            return Crashed(message=str(error))
        text = f"{error}; start the server with the same model, and wait until it listens"
        return Unanswerable(message=text)

    def busy(self, error: "StillBusy") -> Outcome:
        words = printable(str(error))
        return Crashed(message=words) if error.failed else Busy(message=words)

    def refusal(self, error: StatusRefused) -> Outcome:
        words = printable(error.message)
        if error.status in LACKING or 300 <= error.status < 400:
            more = ""
            if self.lacking and self.said is None:
                more = f"; the server has none of {', '.join(dict.fromkeys(self.lacking))}"
                if "/v1" not in self.address.base:
                    more += "; most servers of that kind need /v1 in the address"
            return Unanswerable(message=words + more)
        if error.status in REFUSALS:
            return Rejected(message=words)
        if error.status >= 500:
            return Crashed(message=words)
        if error.status in CLOSED_TO_US:
            words += " (if it needs a key, set LOCKSTEP_API_KEY)"
        # At the start, the user must correct the address or key. Later, the status says nothing
        # about the question: for example, a key may have expired.
        return Unanswerable(message=words) if self.said is None else Busy(message=words)

    # --- the start --------------------------------------------------------------------------------

    def start_session(self, deadline: float) -> EngineInfo:
        """Return the server's description, looked up once. Raises Unsupported if the server runs
        another model."""
        if self.said is None:
            self.server, about = self.find_server(deadline)
            if difference := other_model(about, self.model):
                raise Unsupported(f"the server's model is not MODEL: {difference}")
            self.check_adapters()
            self.said = info_of(self.name, about, settings=self.settings)
        return self.said

    def check_adapters(self) -> None:
        """Raise Unsupported for adapter files whose use the server does not report."""
        if self.settings.files_of(CONTROL_VECTOR):
            raise Unsupported("no server reports which control vectors it adds")
        loras = self.settings.files_of(LORA)
        if loras and not isinstance(self.server, LlamaServer) and not self.starts_with(loras):
            raise Unsupported(
                "only llama-server reports its LoRA files and accepts scales for them"
            )

    def starts_with(self, loras: Sequence[tuple[Path, float]]) -> bool:
        """Return True if the server was started with these files and scales."""
        return False

    def find_server(self, deadline: float) -> tuple[Server, About]:
        """Return the first kind of server whose endpoints exist. Raises StatusRefused if none
        does."""
        self.lacking.clear()
        ask = self.asking(self.address, deadline)
        if not self.only_openai:
            props = page(ask, "/props")
            if type(props) is dict and "default_generation_settings" in props:
                native = LlamaServer(
                    ends=partial(ends_of, self.model), loras=self.settings.files_of(LORA)
                )
                return native, native.about(ask)
        base = self.address.base
        if not base.endswith("/v1") and not self.name.startswith(OPENAI):
            self.address = address_of(f"{self.address}/v1")
            ask = self.asking(self.address, deadline)
        other = OpenAi(name=self.chosen)
        try:
            return other, other.about(ask)
        except StatusRefused as error:
            if error.status not in LACKING:
                raise
        chat = Chat(name=self.chosen)
        return chat, chat.about(ask)


def in_short(method: str, path: str, body: Any) -> str:
    """Describe a request so that a user can repeat it by hand. A long body is cut off."""
    said = "" if body is None else " " + json.dumps(body)
    return f"{method} {path}{said[:SHOWN]}{'...' * (len(said) > SHOWN)}"


def tokens_counted(said: Any) -> int | None:
    """Return the number of tokens in the prompt, which both kinds of servers report; None if it is
    missing."""
    if type(said) is not dict:
        return None
    usage = said.get("usage")
    n = usage.get("prompt_tokens") if type(usage) is dict else said.get("tokens_evaluated")
    return n if type(n) is int else None


class StillBusy(Exception):
    """Error: the server was busy until the time limit, or for too many attempts. `failed` is True
    if the server was loading its model and never said when it would be ready. StatusRefused is not
    used here, because it means that the server lacks an ability."""

    def __init__(self, message: str, *, failed: bool) -> None:
        super().__init__(message)
        self.failed = failed


def waited_for(get: Callable[[], Any], deadline: float) -> Any:
    """Return the server's answer. If the server is loading its model or has no free slot, wait and
    ask again. Raises StillBusy."""
    times = 0
    while True:
        try:
            return get()
        except StatusRefused as error:
            if error.status not in (LOADING, *HURRIED):
                raise
            times += 1
            hurried = error.status in HURRIED
            usual = AGAIN_SECONDS * 2 ** (times - 1) if hurried else AGAIN_SECONDS
            wait = usual if error.wait is None else max(error.wait, AGAIN_SECONDS)
            late = monotonic() + wait > deadline
            if late or (hurried and times == TIMES):
                raise given_up(error, times, wait if late else 0) from error
            sleep(wait)


def given_up(error: StatusRefused, times: int, wait: float) -> StillBusy:
    """Return the error for a question that was given up. `wait` is the number of seconds that
    Lockstep would have to wait, if this is beyond the time limit; else 0."""
    if error.status == LOADING and error.wait is None:
        return StillBusy(error.message, failed=True)
    text = f"{error.message} (asked {f'{times} times' if times > 1 else 'once'}"
    text += f"; it asks to wait {wait:g} s, beyond the time limit" if wait else ""
    return StillBusy(f"{text})", failed=False)


def page(ask: Ask, path: str) -> Any:
    """Return the answer of one of the server's endpoints; None if the endpoint does not exist."""
    try:
        return ask("GET", path)
    except StatusRefused as error:
        if error.status in LACKING:
            return None
        raise


def other_model(about: About, model: Path | None) -> str:
    """Describe how the server's model differs from the file; "" if both are the same."""
    if model is None or not model.is_file():
        return ""
    theirs = Path(about.path) if about.path else None
    if theirs and theirs.is_file() and theirs.stat().st_size != model.stat().st_size:
        sizes = theirs.stat().st_size, model.stat().st_size
        return f"{theirs} has {sizes[0]} bytes, but {model} has {sizes[1]} bytes"
    own = numbers_of(model)
    for name, value in about.facts:
        if own.get(name) not in (None, value):
            return f"{name} is {value}, but {own[name]} in {model.name}"
    return ""


def ends_of(model: Path | None) -> frozenset[int]:
    """Return the tokens that end a text; an empty set if the file is missing or unreadable."""
    if model is None or not model.is_file():
        return frozenset()
    try:
        with GgufFile.open(model) as file:
            return tokenizer_of(file.metadata).vocabulary.eog
    except (EngineError, OSError):
        return frozenset()


def numbers_of(model: Path) -> dict[str, int]:
    """Return the model's sizes under llama-server's names; {} if our reader refuses the file."""
    try:
        with GgufFile.open(model) as file:
            arch = file.metadata.get("general.architecture")
            width = file.metadata.get(f"{arch.data}.embedding_length") if arch else None
            tokens = file.metadata.get("tokenizer.ggml.tokens")
            n_params = sum(prod(tensor.ne) for tensor in file.tensors.values())
    except (EngineError, OSError):
        return {}
    found = {"n_params": n_params}
    if width is not None and type(width.data) is int:
        found["n_embd"] = width.data
    if tokens is not None and tokens.element is not None:
        found["n_vocab"] = len(tokens.data)
    return found
