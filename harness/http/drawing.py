"""Translates chains of samplers into request parameters, as far as a server's interface can express
them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lockstep.engine.errors import Unsupported
from lockstep.harness.answers import MalformedAnswer
from lockstep.harness.http.base import member, number, token_of, utf8

Stage = Mapping[str, Any]
Names = Mapping[str, str]  # parameter in llama.h -> parameter of the server
USUAL_WINDOW = 64  # tokens that penalties look at, if the interface has no parameter for it
MOST_BIAS = 100.0  # limit of OpenAI's interface, where its negative bans a token
MOST_PENALTY = 2.0  # limit of OpenAI's frequency and presence penalties
# parameters that are not sent: the server has one seed for all samplers
UNTOLD = ("sampler", "seed")

# llama-server: name in `samplers` ("" if the stage has a fixed place), and parameters
KEEP = {"min_keep": "min_keep"}
LLAMA_SERVER: Mapping[str, tuple[str, Names]] = {
    "logit_bias": ("", {"biases": "logit_bias"}),
    "grammar": ("", {"grammar_str": "grammar"}),
    "penalties": (
        "penalties",
        {
            "penalty_last_n": "repeat_last_n",
            "penalty_repeat": "repeat_penalty",
            "penalty_freq": "frequency_penalty",
            "penalty_present": "presence_penalty",
        },
    ),
    "dry": (
        "dry",
        {
            "dry_multiplier": "dry_multiplier",
            "dry_base": "dry_base",
            "dry_allowed_length": "dry_allowed_length",
            "dry_penalty_last_n": "dry_penalty_last_n",
            "seq_breakers": "dry_sequence_breakers",
        },
    ),
    "top_k": ("top_k", {"k": "top_k"}),
    "top_p": ("top_p", {"p": "top_p", **KEEP}),
    "min_p": ("min_p", {"p": "min_p", **KEEP}),
    "typical": ("typ_p", {"p": "typical_p", **KEEP}),
    "top_n_sigma": ("top_n_sigma", {"n": "top_n_sigma"}),
    "xtc": ("xtc", {"p": "xtc_probability", "t": "xtc_threshold", **KEEP}),
    "temp": ("temperature", {"t": "temperature"}),
    "temp_ext": (
        "temperature",
        {"t": "temperature", "delta": "dynatemp_range", "exponent": "dynatemp_exponent"},
    ),
}
LLAMA_SERVER_OFF: Mapping[str, Any] = {
    "temperature": 1.0,
    "dynatemp_range": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repeat_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "mirostat": 0,
    "cache_prompt": False,
    "stream": False,
}
OPENAI: Mapping[str, Names] = {
    "temp": {"t": "temperature"},
    "top_p": {"p": "top_p"},
    "penalties": {"penalty_freq": "frequency_penalty", "penalty_present": "presence_penalty"},
    "logit_bias": {"biases": "logit_bias"},
}
# parameters beyond OpenAI's interface: a server may refuse or ignore them
BEYOND_OPENAI: Mapping[str, Names] = {
    "top_k": {"k": "top_k"},
    "min_p": {"p": "min_p"},
    "typical": {"p": "typical_p"},
    "penalties": {"penalty_repeat": "repeat_penalty"},
}
# OpenAI does not say whether penalties for the first token count the prompt
PROMISED = frozenset(("temp", "top_p", "logit_bias"))
OPENAI_OFF: Mapping[str, Any] = {"temperature": 1.0, "top_p": 1.0}
BEYOND_OFF: Mapping[str, Any] = {"top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0}
NEUTRAL: Mapping[str, tuple[Any, ...]] = {  # values that need not be sent
    "min_keep": (0, 1),
    "grammar_root": ("root",),
    "penalty_last_n": (USUAL_WINDOW,),
    "penalty_repeat": (1.0,),
    "penalty_freq": (0.0,),
    "penalty_present": (0.0,),
}


def llama_server_options(chain: Sequence[Stage]) -> dict[str, Any]:
    """Return the parameters of /completion. Raises Unsupported for a chain that these parameters
    cannot express."""
    options, order = dict(LLAMA_SERVER_OFF), list[str]()
    for stage in before_draw(chain):
        place, names = LLAMA_SERVER.get(stage["sampler"], ("", {}))
        if not names or place in order or (not place and order):
            raise Unsupported(
                f"llama-server has no parameters for {stage['sampler']} at this place"
            )
        order += [place] if place else []
        options |= rename(stage, names)
    if "logit_bias" in options:
        options["logit_bias"] = [list(pair) for pair in options["logit_bias"]]
    if breakers := options.get("dry_sequence_breakers"):
        options["dry_sequence_breakers"] = utf8(breakers)
    return options | {"samplers": order}


def openai_options(chain: Sequence[Stage], *, beyond: bool) -> dict[str, Any]:
    """Return the parameters of /v1/completions, which cannot set the order of stages.

    `beyond` is True if the server accepts parameters that OpenAI's own interface lacks. Raises
    Unsupported for a chain that the parameters cannot express.
    """
    stages = before_draw(chain)
    if len(stages) > 1:
        raise Unsupported("the interface cannot set the order of stages")
    options = {**OPENAI_OFF, **(BEYOND_OFF if beyond else {})}
    for stage in stages:
        name = stage["sampler"]
        more = rename(stage, {**OPENAI.get(name, {}), **(BEYOND_OPENAI.get(name, {}))})
        if not beyond and set(more) & {*BEYOND_OPENAI.get(name, {}).values()}:
            others = {k for k, v in more.items() if v != BEYOND_OFF.get(k)}
            if others - {*OPENAI.get(name, {}).values()} or name not in OPENAI:
                raise Unsupported(f"the interface has no {name}")
            more = {k: more[k] for k in others}
        options |= more
    if "logit_bias" in options:
        biases = options["logit_bias"]
        if len(dict(biases)) < len(biases) or any(abs(b) > MOST_BIAS for _, b in biases):
            raise Unsupported("the interface allows one bias for each token, of at most 100")
        options["logit_bias"] = {str(token): bias for token, bias in biases}
    for name in ("frequency_penalty", "presence_penalty"):
        if abs(options.get(name, 0.0)) > MOST_PENALTY:
            raise Unsupported(f"the interface allows a {name} of at most {MOST_PENALTY:g}")
    if "repeat_penalty" in options:
        options["repetition_penalty"] = options["repeat_penalty"]
    return options


def before_draw(chain: Sequence[Stage]) -> Sequence[Stage]:
    """Return the stages before the final draw, which every server makes. Raises Unsupported for a
    chain without a final draw."""
    if not chain or chain[-1]["sampler"] != "dist":
        raise Unsupported("a server always draws at the end of a chain")
    return chain[:-1]


def rename(stage: Stage, names: Names) -> dict[str, Any]:
    """Rename the parameters of a stage. Raises Unsupported if the interface lacks a required
    parameter."""
    found = {}
    for name, value in stage.items():
        if name in names:
            found[names[name]] = value
        elif name not in UNTOLD and value not in NEUTRAL.get(name, ()):
            raise Unsupported(f"the interface has no {name} of {stage['sampler']}")
    if not found:
        raise Unsupported(f"the interface has no {stage['sampler']}")
    return found


def probabilities_shown(said: Any) -> tuple[tuple[int | bytes, float], ...] | None:
    """Return llama-server's list of candidates after its samplers; None if the answer has no
    list."""
    rows = said.get("completion_probabilities") if type(said) is dict else None
    if type(rows) is not list or not rows or type(rows[0]) is not dict:
        return None
    if "top_probs" not in rows[0]:  # older servers show the list before the samplers
        return None
    listed = member(rows[0], "top_probs")
    if type(listed) is not list:
        raise MalformedAnswer("'top_probs'", "a list", listed)
    return tuple(pairs(listed))


def pairs(rows: Sequence[Any]) -> Iterator[tuple[int | bytes, float]]:
    for row in rows:
        yield token_of(row), number(member(row, "prob"))
