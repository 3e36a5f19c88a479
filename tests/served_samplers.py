"""Servers for tests of sampling: with the parameters of llama-server and OpenAI, on our own
engine."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.engine.errors import Unsupported
from lockstep.harness.adapters.parts.sampled_lists import SampledList, split_lists
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.asking.session import LocalSession
from lockstep.harness.http.drawing import PROMISED, llama_server_options, openai_options
from lockstep.harness.records import (
    EXACT,
    Answered,
    DrawAnswer,
    DrawRequest,
    Rejected,
    SampleRequest,
)
from lockstep.harness.samplers.served import NotSaid

Options = Mapping[str, Any]
ROWS = 64  # number of draws in one question
LEAST = 1e-9  # least probability in a list


def llama_stages(options: Options) -> list[dict[str, Any]]:
    """Read the parameters of /completion as llama-server does."""
    keep = options.get("min_keep", 0)
    wide = options["dynatemp_range"] > 0
    makers: dict[str, dict[str, Any]] = {
        "penalties": {
            "sampler": "penalties",
            "penalty_last_n": options.get("repeat_last_n", 64),
            "penalty_repeat": options["repeat_penalty"],
            "penalty_freq": options["frequency_penalty"],
            "penalty_present": options["presence_penalty"],
        },
        "top_k": {"sampler": "top_k", "k": options["top_k"]},
        "top_p": {"sampler": "top_p", "p": options["top_p"], "min_keep": keep},
        "min_p": {"sampler": "min_p", "p": options["min_p"], "min_keep": keep},
        "typ_p": {"sampler": "typical", "p": options["typical_p"], "min_keep": keep},
        "top_n_sigma": {"sampler": "top_n_sigma", "n": options.get("top_n_sigma", -1.0)},
        "xtc": {
            "sampler": "xtc",
            "p": options.get("xtc_probability", 0.0),
            "t": options.get("xtc_threshold", 0.1),
            "min_keep": keep,
            "seed": 0,
        },
        "temperature": {"sampler": "temp", "t": options["temperature"]}
        if not wide
        else {
            "sampler": "temp_ext",
            "t": options["temperature"],
            "delta": options["dynatemp_range"],
            "exponent": options.get("dynatemp_exponent", 1.0),
        },
    }
    if breakers := options.get("dry_sequence_breakers"):
        makers["dry"] = {
            "sampler": "dry",
            "dry_multiplier": options["dry_multiplier"],
            "dry_base": options["dry_base"],
            "dry_allowed_length": options["dry_allowed_length"],
            "dry_penalty_last_n": options["dry_penalty_last_n"],
            "seq_breakers": tuple(each.encode() for each in breakers),
        }
    return [*first_stages(options), *(makers[name] for name in options["samplers"])]


def first_stages(options: Options) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if pairs := options.get("logit_bias"):
        pairs = pairs.items() if isinstance(pairs, dict) else pairs
        found.append({"sampler": "logit_bias", "biases": tuple((int(t), b) for t, b in pairs)})
    if text := options.get("grammar"):
        found.append({"sampler": "grammar", "grammar_str": text, "grammar_root": "root"})
    return found


def openai_stages(options: Options) -> list[dict[str, Any]]:
    """Read the parameters of /v1/completions as llama-cpp-python's server does."""
    order = ["penalties", "top_k", "typ_p", "top_p", "min_p", "temperature"]
    off = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repeat_penalty": 1.0}
    off |= {"top_k": 0, "typical_p": 1.0, "min_p": 0.0, "dynatemp_range": 0.0}
    return llama_stages({**off, **options, "samplers": order})


class Sampling:
    """An engine that samples a row of logits by a server's parameters."""

    def __init__(self, cls: type[Reference], model: Path | None, run: int = 0) -> None:
        self.session, self.run = LocalSession(cls, model, EXACT), run
        self.held: dict[tuple[str, int], list[list[SampledList]]] = {}

    def draw(
        self, stages: Sequence[Mapping[str, Any]], row: Any, prompt: Sequence[int], seed: int
    ) -> SampledList:
        """Return the list of candidates after the last stage, with the drawn token."""
        block = seed // ROWS
        key = repr((stages, row.tobytes(), tuple(prompt))), block
        if key not in self.held:
            self.held[key] = self.ask(stages, row, prompt, block)
        return self.held[key][seed % ROWS][-1]

    def ask(
        self, stages: Sequence[Mapping[str, Any]], row: Any, prompt: Sequence[int], block: int
    ) -> list[list[SampledList]]:
        chain = (*stages, {"sampler": "dist", "seed": 0})
        told = () if any(stage["sampler"] == "grammar" for stage in stages) else tuple(prompt)
        shares = np.random.default_rng((self.run, block)).random((ROWS, 1))
        request = SampleRequest(
            chain=chain,
            logits=np.repeat(row[None], ROWS, axis=0),
            accepted=(told, *((),) * (ROWS - 1)),
            draws=np.repeat(shares, len(chain), axis=1),
        )
        outcome = self.session.ask("sample", request)
        if isinstance(outcome, Rejected):
            raise Unsupported(outcome.message)
        assert isinstance(outcome, Answered), outcome
        return split_lists(outcome.value)

    def go_on(
        self,
        stages: Sequence[Mapping[str, Any]],
        row_after: Callable[[Sequence[int]], Any],
        first: int,
        n: int,
        seed: int,
    ) -> tuple[int, ...]:
        """Return up to n tokens after the first token. `row_after` gives the logits after the
        tokens of the text."""
        found, rng = [first], np.random.default_rng((self.run, seed))
        chain = (*stages, {"sampler": "dist", "seed": 0})
        for _ in range(n):
            rows = [row_after(found[:i]) for i in range(len(found) + 1)]
            request = SampleRequest(
                chain=chain,
                logits=np.stack(rows),
                accepted=((), *((token,) for token in found)),
                draws=np.repeat(rng.random((len(rows), 1)), len(chain), axis=1),
            )
            outcome = self.session.ask("sample", request)
            assert isinstance(outcome, Answered), outcome
            if (token := split_lists(outcome.value)[-1][-1].selected) < 0:
                break
            found.append(token)
        return tuple(found[1:])


def listed_of(found: SampledList) -> tuple[tuple[int, float], ...]:
    """Return the tokens and probabilities that llama-server shows with post_sampling_probs."""
    weights = np.exp(found.logits.astype(np.float64) - found.logits.max())
    p = (weights / weights.sum()).tolist()
    return tuple((t, x) for t, x in zip(found.ids.tolist(), p, strict=True) if x > LEAST)


def ask_of_llama(
    sampling: Sampling, row: Any, prompt: Sequence[int], *, lists: bool = True
) -> Callable[[DrawRequest], DrawAnswer | NotSaid]:
    def ask(request: DrawRequest) -> DrawAnswer | NotSaid:
        try:
            stages = llama_stages(llama_server_options(request.chain))
            found = sampling.draw(stages, row, prompt, request.seed)
        except Unsupported as error:
            return NotSaid(why=str(error))
        shown = listed_of(found) if lists and request.n_listed else None
        more = sampling.go_on(stages, lambda _: row, found.selected, request.more, request.seed)
        return DrawAnswer(token=found.selected, listed=shown, more=more)

    return ask


def ask_of_openai(
    sampling: Sampling, row: Any, prompt: Sequence[int], *, beyond: bool = True
) -> Callable[[DrawRequest], DrawAnswer | NotSaid]:
    def ask(request: DrawRequest) -> DrawAnswer | NotSaid:
        try:
            stages = openai_stages(openai_options(request.chain, beyond=beyond))
        except Unsupported as error:
            return NotSaid(why=str(error))
        found = sampling.draw(stages, row, prompt, request.seed)
        names = {stage["sampler"] for stage in request.chain[:-1]}
        return DrawAnswer(token=found.selected, promised=bool(names) and names <= PROMISED)

    return ask


KINDS: Mapping[str, Callable[..., Callable[[DrawRequest], DrawAnswer | NotSaid]]] = {
    "llama-server": ask_of_llama,
    "llama-server by draws": partial(ask_of_llama, lists=False),
    "openai": ask_of_openai,
    "openai alone": partial(ask_of_openai, beyond=False),
}
