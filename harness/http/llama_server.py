"""llama-server through its own endpoints: ids go in and come out, with any number of
log-probabilities.

Source: tools/server of llama.cpp, and the answers of a build of 2026. Lockstep sends one request
for each prefix. No request uses the cache of an earlier request, so that the server computes all
prefixes alike.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from typing import Any

from lockstep.engine.errors import Unsupported
from lockstep.harness.answers import MalformedAnswer
from lockstep.harness.http.base import About, Ask, as_bytes, candidates, member, one_way, text, utf8
from lockstep.harness.http.client import LACKING, REFUSALS, StatusRefused
from lockstep.harness.http.drawing import llama_server_options, probabilities_shown
from lockstep.harness.protocol.messages import printable
from lockstep.harness.records import DrawAnswer, DrawRequest

LEVELS = ("tokenize", "generate", "greedy", "logprobs", "draw")
SURELY = 10_000  # bias that makes a logit the largest of any model's
OF_MODEL = ("n_vocab", "n_embd", "n_params", "vocab_type")
NO_LIST = (
    ": the server ignores logit_bias, and sends no completion_probabilities at the end of the text"
)
NO_VOCABULARY = 0  # a value of vocab_type; llama_token_to_piece would abort
# selects the most likely token whatever options the server was started with
GREEDY = {
    "temperature": 0,
    "samplers": ["top_k"],
    "top_k": 1,
    "repeat_penalty": 1.0,
    "cache_prompt": False,
    "stream": False,
}


@dataclass(kw_only=True)
class LlamaServer:
    n_ctx: int = 0  # cells of a slot; 0: unknown
    plain: int | None = None  # see `letter`
    takes_bias: bool = True  # False after the server refused one
    ends: Callable[[], frozenset[int]] = frozenset  # tokens that end a text; empty: unknown
    loras: Sequence[tuple[Path, float]] = ()  # files to apply, each with its scale
    scales: list[dict[str, float]] = field(default_factory=list)  # see `scales_of`

    def about(self, ask: Ask) -> About:
        props = ask("GET", "/props")
        build = props.get("build_info") if type(props) is dict else None
        defaults = member(props, "default_generation_settings")
        n_ctx = defaults.get("n_ctx") if type(defaults) is dict else None
        self.n_ctx = n_ctx if type(n_ctx) is int else 0
        path = props.get("model_path")
        self.scales = scales_of(self.loras, loaded_loras(ask))
        facts = model_facts(ask)
        mute = dict(facts).get("vocab_type") == NO_VOCABULARY
        return About(
            version=printable(f"llama-server {build if type(build) is str else 'unknown'}"),
            build="the model has no vocabulary: any question would crash the server"
            if mute
            else "",
            levels=() if mute else LEVELS,
            facts=facts,
            path=printable(path) if type(path) is str else "",
        )

    def complete(self, ask: Ask, body: dict[str, Any]) -> Any:
        return ask("POST", "/completion", body | ({"lora": self.scales} if self.scales else {}))

    def tokenize(
        self,
        ask: Ask,
        texts: Sequence[bytes],
        *,
        add_special: bool = True,
        parse_special: bool = False,
    ) -> list[list[int]]:
        flags = {"add_special": add_special, "parse_special": parse_special, "with_pieces": False}
        said = (ask("POST", "/tokenize", {"content": each, **flags}) for each in utf8(texts))
        return [tokens_of(each) for each in said]

    def generate(self, ask: Ask, prompt: bytes, n: int) -> bytes:
        """Generate text. The prompt has at most as many tokens as bytes, plus two (BOS and a
        space)."""
        (words,) = utf8([prompt])
        self.check_room(len(prompt) + 2 + n)
        said = self.complete(ask, {"prompt": words, "n_predict": n, **GREEDY})
        return as_bytes(text(said, "content"))

    def greedy(self, ask: Ask, prompt: Sequence[int], n: int) -> list[int]:
        """Return greedy tokens. The server stops at an end-of-text token and omits it. The client
        then determines this token as the most likely token."""
        self.check_room(len(prompt) + n)
        found: list[int] = []
        while len(found) < n:
            here = [*map(int, prompt), *found]
            body = {"prompt": here, "n_predict": n - len(found), "return_tokens": True, **GREEDY}
            said = self.complete(ask, body)
            new = tokens_of(said)
            found += new[: n - len(found)]
            if len(found) < n:
                found.append(self.likeliest(ask, [*here, *new], ended=has_ended(said)))
        return found

    def likeliest(self, ask: Ask, prefix: Sequence[int], *, ended: bool) -> int:
        """Return the most likely token. `ended` is True if the server says that the text ends
        here."""
        rows = self.list_likeliest(ask, prefix, 1)
        if not rows and ended and len(ends := self.ends()) == 1:
            return min(ends)
        if not rows or type(rows[0][0]) is not int:
            raise Unsupported(f"the server does not report its last token{NO_LIST}")
        return rows[0][0]

    def logprobs(
        self, ask: Ask, prefixes: Sequence[Sequence[int]], k: int
    ) -> list[list[tuple[int | bytes, float]]]:
        self.check_room(max(map(len, prefixes), default=0) + 1)
        return [self.list_likeliest(ask, prefix, k) for prefix in prefixes]

    def list_likeliest(
        self, ask: Ask, prefix: Sequence[int], k: int
    ) -> list[tuple[int | bytes, float]]:
        """Return the most likely tokens by the raw logits, before any sampler.

        The server sends no list if the chosen token ends the text or contains only a part of a
        character. Therefore a bias makes the server choose a letter. A server that ignores or
        refuses the bias sends an empty list in these cases, and Lockstep does not compare an empty
        list.
        """
        body = {**GREEDY, "prompt": list(map(int, prefix)), "n_predict": 1, "n_probs": k}
        body |= {"post_sampling_probs": False}
        bias = {"logit_bias": [[self.letter(ask), SURELY]]} if self.takes_bias else {}
        try:
            said = self.complete(ask, body | bias)
        except StatusRefused as error:
            if not bias or error.status not in REFUSALS:
                raise
            said = self.complete(ask, body)
            self.takes_bias = False
        none = type(said) is dict and not said.get("completion_probabilities")
        if none and (has_ended(said) or not self.takes_bias):
            return []
        rows = member(said, "completion_probabilities", 0, "top_logprobs")
        return one_way(candidates(rows))

    def draw(self, ask: Ask, request: DrawRequest) -> DrawAnswer:
        """Draw a token. The server omits an end-of-text token from its answer, and may then send no
        list."""
        prompt = request.prompt
        words = prompt.decode() if isinstance(prompt, bytes) else list(map(int, prompt))
        self.check_room(len(words) + 1 + request.more)
        body = {"prompt": words, "n_predict": 1 + request.more, "return_tokens": True}
        body |= {"seed": request.seed, **llama_server_options(request.chain)}
        if request.n_listed:
            body |= {"n_probs": request.n_listed, "post_sampling_probs": True}
        said = self.complete(ask, body)
        tokens = [token for token in tokens_of(said) if token not in self.ends()]
        listed = probabilities_shown(said) if request.n_listed else None
        first, more = tokens[0] if tokens else None, tuple(tokens[1 : 1 + request.more])
        return DrawAnswer(token=first, listed=listed, more=more)

    def letter(self, ask: Ask) -> int:
        """Return a token whose text is the letter "a"."""
        if self.plain is None:
            ids = self.tokenize(ask, [b"a"], add_special=False)[0]
            if not ids:
                raise Unsupported("the model has no token for the letter a")
            self.plain = ids[-1]  # some vocabularies put a space token before it
        return self.plain

    def check_room(self, n: int) -> None:
        if 0 < self.n_ctx < n:
            raise Unsupported(
                f"the server's context has {self.n_ctx} cells, but the run needs {n}: set "
                "--ctx-size"
            )


def has_ended(said: Any) -> bool:
    """Return True if the server reports that the text ended with an end-of-generation token."""
    return type(said) is dict and said.get("stop_type") == "eos"


def tokens_of(said: Any) -> list[int]:
    found = member(said, "tokens")
    if type(found) is not list or not all(type(token) is int for token in found):
        raise MalformedAnswer("'tokens'", "a list of ids", found)
    return found


def loaded_loras(ask: Ask) -> list[str]:
    """Return the paths of the LoRA files that the server has loaded, in the order of their ids."""
    try:
        rows = ask("GET", "/lora-adapters")
    except StatusRefused as error:
        if error.status not in LACKING:
            raise
        return []
    if type(rows) is not list or [member(row, "id") for row in rows] != list(range(len(rows))):
        raise MalformedAnswer("/lora-adapters", "a list with the ids 0, 1, ...", rows)
    return [text(row, "path") for row in rows]


def scales_of(files: Sequence[tuple[Path, float]], loaded: Sequence[str]) -> list[dict[str, float]]:
    """Return a scale for each loaded file: 0 for a file that was not requested. The server may use
    other paths for the same files, so if no path is equal, the file's name is compared.

    Raises Unsupported for a file that the server has not loaded.
    """
    scales = [0.0] * len(loaded)
    left = set(range(len(loaded)))
    for path, scale in files:
        fits = [i for i in left if PureWindowsPath(loaded[i]).name == path.name]
        if not fits:
            raise Unsupported(
                f"the server has not loaded the LoRA file {path.name}: start it with --lora, "
                'or by "serve:... --lora {lora}"'
            )
        found = min(fits, key=lambda i: (loaded[i] != str(path.resolve()), i))
        left.remove(found)
        scales[found] = scale
    return [{"id": i, "scale": scale} for i, scale in enumerate(scales)]


def model_facts(ask: Ask) -> tuple[tuple[str, Any], ...]:
    """Return facts of the model from /v1/models. Not every build offers them."""
    try:
        meta = member(ask("GET", "/v1/models"), "data", 0).get("meta")
    except StatusRefused:
        return ()
    if type(meta) is not dict:
        return ()
    return tuple((name, meta[name]) for name in OF_MODEL if type(meta.get(name)) is int)
