"""Servers for tests. One answers like llama-server or OpenAI's servers, honestly or with a change;
one sends fixed bytes."""

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from lockstep.engine.batch import Batch
from lockstep.engine.errors import Unsupported
from lockstep.harness.adapters.fast import FastEngine
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.records import EXACT, LORA, AdapterFile, Request
from tests.quiet_engines import log_softmax
from tests.served_samplers import Sampling, listed_of, llama_stages, openai_stages

Change = Callable[[str, Any], Any]  # path, answer -> answer
Refuses = Callable[[Any], str]  # returns why a body is refused, or ""
LONG = 30  # tokens; usual prompts are shorter


class Busy(dict[str, Any]):
    """Answer of a busy server. after: the value of the header Retry-After."""

    def __init__(self, said: Any = (), status: int = 503, after: str = "") -> None:
        super().__init__(said)
        self.status, self.after = status, after


class Honest:
    """llama-server and an OpenAI-compatible server on one engine of ours."""

    def __init__(
        self,
        model: Path,
        change: Change,
        pages: frozenset[str],
        takes_ids: bool,
        strict: bool,
        to_long: Busy | None,
        refuses: Refuses,
        around: str,
        samplers: type[Reference],
        loras: Sequence[Path],
    ) -> None:
        self.sampling = Sampling(samplers, model)
        self.rows: dict[tuple[int, ...], Any] = {}
        self.strict, self.to_long, self.refuses, self.around = strict, to_long, refuses, around
        self.loras, self.model = loras, model
        self.engines: dict[tuple[float, ...], FastEngine] = {}
        self.engine = self.engine_with([1.0] * len(loras))
        self.change, self.pages, self.takes_ids = change, pages, takes_ids
        self.lock = threading.Lock()

    def engine_with(self, scales: Sequence[float]) -> FastEngine:
        """Return the engine that adds each LoRA file with its scale."""
        if (key := tuple(scales)) not in self.engines:
            files = zip(self.loras, scales, strict=True)
            added = tuple(AdapterFile(kind=LORA, path=str(path), scale=s) for path, s in files)
            self.engines[key] = FastEngine(self.model, replace(EXACT, adapters=added))
        return self.engines[key]

    def lora_adapters(self, body: Any, v1: bool) -> tuple[int, Any]:
        return 200, [{"id": i, "path": f"models/{p.name}"} for i, p in enumerate(self.loras)]

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        name = path.removeprefix("/v1").strip("/").replace("/", "_").replace("-", "_")
        method = getattr(self, name, None)
        if path not in self.pages or method is None:
            return 404, {"error": {"message": "File Not Found", "code": 404}}
        if why := self.refuses(body or {}):
            return 400, {"error": {"message": why}}
        with self.lock:
            if rows := (body or {}).get("lora"):
                self.engine = self.engine_with([row["scale"] for row in rows])
            status, said = method(body, path.startswith("/v1"))
        said = self.change(path, said) if status == 200 else said
        if self.to_long is not None and len(self.ids_of((body or {}).get("prompt", []))) > LONG:
            said = self.to_long
        return said.status if isinstance(said, Busy) else status, said

    def props(self, body: Any, v1: bool) -> tuple[int, Any]:
        settings = {"n_ctx": 512}
        return 200, {"default_generation_settings": settings, "build_info": "b1-fake"}

    def models(self, body: Any, v1: bool) -> tuple[int, Any]:
        file = self.engine.file
        width = file.metadata["llama.embedding_length"].data
        meta = {"n_vocab": len(self.engine.tokenizer.pieces), "n_embd": width}
        return 200, {"data": [{"id": "fake", "meta": meta}]}

    def tokenize(self, body: Any, v1: bool) -> tuple[int, Any]:
        flags = {key: body[key] for key in ("add_special", "parse_special")}
        return 200, {"tokens": self.engine.tokenize([body["content"].encode()], **flags)[0]}

    def ids_of(self, prompt: Any) -> list[int]:
        if not isinstance(prompt, str):
            return prompt
        return self.engine.tokenize([self.around.format(prompt).encode()])[0]

    def completion(self, body: Any, v1: bool) -> tuple[int, Any]:
        """Complete a prompt. The end of text (here any token without a text) ends the answer. For
        an end of text and for a partial character, the answer has no list of candidates, even with
        a bias."""
        ids = self.ids_of(body["prompt"])
        if body.get("temperature") != 0 or "seed" in body:
            try:
                return 200, self.sampled(body, ids)
            except Unsupported as error:
                return 400, {"error": {"message": str(error)}}
        new = self.engine.greedy(ids, body["n_predict"])
        for token, _ in body.get("logit_bias", ()):
            new = [token] * len(new)
        pieces = [self.engine.tokenizer.piece(token, special=False) for token in new]
        n = next((i for i, piece in enumerate(pieces) if not piece), len(pieces))
        text = b"".join(pieces[:n]).decode("utf-8", "replace")
        said: dict[str, Any] = {"content": text, "tokens": new[:n]}
        if (k := body.get("n_probs")) and pieces[0].isascii() and pieces[0]:
            said["completion_probabilities"] = [{"top_logprobs": self.listed(ids, k)}]
        return 200, said

    def sampled(self, body: Any, ids: list[int]) -> dict[str, Any]:
        """Return one token drawn by the requested samplers, with the remaining candidates."""
        stages, seed = llama_stages(body), body["seed"]
        found = self.sampling.draw(stages, self.row_after(tuple(ids)), ids, seed)
        more = self.sampling.go_on(
            stages,
            lambda text: self.row_after((*ids, *text)),
            found.selected,
            body["n_predict"] - 1,
            seed,
        )
        piece = self.engine.tokenizer.piece(found.selected, special=False)
        said: dict[str, Any] = {"content": piece.decode("utf-8", "replace")}
        said["tokens"] = [found.selected, *more]
        if k := body.get("n_probs"):
            ranked = sorted(listed_of(found), key=lambda pair: -pair[1])
            rows = [{"id": token, "token": "", "prob": p} for token, p in ranked]
            said["completion_probabilities"] = [{"top_probs": rows[:k]}]
        return said

    def row_after(self, ids: tuple[int, ...]) -> Any:
        if ids not in self.rows:
            self.rows[ids] = self.engine.evaluate(Request(batches=(Batch.of(ids),))).logits[0][-1]
        return self.rows[ids]

    def listed(self, ids: list[int], k: int) -> list[dict[str, Any]]:
        values = log_softmax(self.engine.evaluate(Request(batches=(Batch.of(ids),))).logits[0][-1])
        rows = []
        for token in (-values).argsort(kind="stable")[:k].tolist():
            piece = self.engine.tokenizer.piece(token, special=True)
            named = {"id": token, "token": piece.decode("utf-8", "replace"), "bytes": [*piece]}
            rows.append({**named, "logprob": float(values[token])})
        return rows

    def completions(self, body: Any, v1: bool) -> tuple[int, Any]:
        if not self.takes_ids and not isinstance(body["prompt"], str):
            return 422, {"detail": "prompt: expected a string"}
        if self.strict and "repeat_penalty" in body:
            return 422, {"detail": "repeat_penalty: no such parameter"}
        if body.get("logprobs", 0) > 20:
            return 400, {"error": {"message": "logprobs must be at most 20"}}
        ids = self.ids_of(body["prompt"])
        if body["temperature"] != 0 or "seed" in body:
            row = self.engine.evaluate(Request(batches=(Batch.of(ids),))).logits[0][-1]
            found = self.sampling.draw(openai_stages(body), row, ids, body["seed"])
            piece = self.engine.tokenizer.piece(found.selected, special=False)
            choice = {"text": piece.decode("utf-8", "replace"), "index": 0}
            return 200, {"choices": [choice], "usage": {"prompt_tokens": len(ids)}}
        _, said = self.completion(
            {"prompt": ids, "n_predict": body["max_tokens"], "temperature": 0}, v1
        )
        if not self.strict and body.get("repeat_penalty", 1.1) != 1:
            said["content"] = said["content"][::-1]  # a penalty would give another text
        choice = {"text": said["content"], "index": 0}
        if k := body.get("logprobs"):
            rows = self.listed(ids, k)
            choice["logprobs"] = {"top_logprobs": [{r["token"]: r["logprob"] for r in rows}]}
        return 200, {"choices": [choice], "usage": {"prompt_tokens": len(ids)}}

    def chat_completions(self, body: Any, v1: bool) -> tuple[int, Any]:
        """Render CHAT_TEMPLATE by hand. The template of a `lockstep acid` model is a fixed text."""
        (message,) = body["messages"]
        held = self.engine.file.metadata.get("tokenizer.chat_template")
        text = f"<user> {message['content']} <bot>"
        if held is not None and "{" not in held.data:
            text = held.data
        ids = self.engine.tokenize([text.encode()], parse_special=True)[0]
        _, said = self.completion(
            {"prompt": ids, "n_predict": body["max_tokens"], "temperature": 0}, v1
        )
        message = {"role": "assistant", "content": said["content"]}
        return 200, {"choices": [{"message": message}], "usage": {"prompt_tokens": len(ids)}}


CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}<bot>{% endif %}"
)
CHAT = frozenset({"/v1/chat/completions"})
NATIVE = frozenset({"/props", "/v1/models", "/tokenize", "/completion", "/lora-adapters"})
OPENAI = frozenset({"/v1/models", "/v1/completions"})


@contextmanager
def serving(
    model: Path,
    change: Change = lambda path, said: said,
    pages: frozenset[str] = NATIVE,
    *,
    takes_ids: bool = True,
    strict: bool = False,
    to_long: Busy | None = None,
    refuses: Refuses = lambda body: "",
    around: str = "{}",
    port: int = 0,
    samplers: type[Reference] = Reference,
    loras: Sequence[Path] = (),
) -> Iterator[str]:
    """Run a server and yield its address. strict: refuse parameters that OpenAI's servers lack; if
    False, the server penalises repetition by default."""
    honest = Honest(
        model, change, pages, takes_ids, strict, to_long, refuses, around, samplers, loras
    )

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply(None)

        def do_POST(self) -> None:
            self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def reply(self, body: Any) -> None:
            status, said = honest.answer(self.path, body)
            raw = said if isinstance(said, bytes) else json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            if after := getattr(said, "after", ""):
                self.send_header("Retry-After", after)
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        for engine in honest.engines.values():
            engine.close()


@contextmanager
def sending(*pieces: bytes, forever: bytes = b"", hang: bool = False) -> Iterator[str]:
    """Run a server that sends these bytes for any question, then `forever` repeatedly or (`hang`)
    nothing; yield its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def send(client: socket.socket) -> None:
        with client:
            try:
                client.recv(1 << 16)
                for piece in pieces:
                    client.sendall(piece)
                while forever and not over.is_set():
                    client.sendall(forever)
                if hang:
                    over.wait(60)
            except OSError:
                return

    def serve() -> None:
        while not over.is_set():
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=send, args=(client,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        with suppress(OSError):
            # otherwise a thread in accept() keeps the socket open
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
