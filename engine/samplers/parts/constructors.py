"""Every constructor of samplers that libllama of llama-cpp-python 0.3.36 exports.

The parameters have the names and the order of llama.h. Our samplers have those parameters that do
not come from the model.
"""

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """Type of a constructor's parameter."""

    INT32 = "int32_t"
    UINT32 = "uint32_t"
    SIZE = "size_t"
    FLOAT = "float"
    VOCABULARY = "const struct llama_vocab *"
    N_VOCAB = "int32_t, the size of the vocabulary"
    BIASES = "int32_t, const llama_logit_bias *"
    TEXTS = "const char **, size_t"
    TEXT = "const char *"
    TOKENS = "const llama_token *, size_t"


OF_MODEL = (Kind.VOCABULARY, Kind.N_VOCAB)


@dataclass(frozen=True, kw_only=True)
class Constructor:
    """Function of llama.h that makes a sampler."""

    function: str
    sampler: str  # name of our sampler
    parameters: tuple[tuple[str, Kind], ...]

    @property
    def fields(self) -> dict[str, Kind]:
        """Return the parameters that describe the sampler, not the model."""
        return {name: kind for name, kind in self.parameters if kind not in OF_MODEL}


def constructor(sampler: str, **parameters: Kind) -> Constructor:
    return Constructor(
        function=f"llama_sampler_init_{sampler}",
        sampler=sampler,
        parameters=tuple(parameters.items()),
    )


def grammar(sampler: str, **parameters: Kind) -> Constructor:
    text = {"vocab": Kind.VOCABULARY, "grammar_str": Kind.TEXT, "grammar_root": Kind.TEXT}
    return constructor(sampler, **text, **parameters)


_I, _U, _S, _F = Kind.INT32, Kind.UINT32, Kind.SIZE, Kind.FLOAT
CONSTRUCTORS = (
    constructor("greedy"),
    constructor("dist", seed=_U),
    constructor("top_k", k=_I),
    constructor("top_p", p=_F, min_keep=_S),
    constructor("min_p", p=_F, min_keep=_S),
    constructor("typical", p=_F, min_keep=_S),
    constructor("temp", t=_F),
    constructor("temp_ext", t=_F, delta=_F, exponent=_F),
    constructor("xtc", p=_F, t=_F, min_keep=_S, seed=_U),
    constructor("top_n_sigma", n=_F),
    constructor("mirostat", n_vocab=Kind.N_VOCAB, seed=_U, tau=_F, eta=_F, m=_I),
    constructor("mirostat_v2", seed=_U, tau=_F, eta=_F),
    constructor(
        "penalties",
        n_vocab=Kind.N_VOCAB,
        penalty_last_n=_I,
        penalty_repeat=_F,
        penalty_freq=_F,
        penalty_present=_F,
    ),
    constructor(
        "dry",
        vocab=Kind.VOCABULARY,
        dry_multiplier=_F,
        dry_base=_F,
        dry_allowed_length=_I,
        dry_penalty_last_n=_I,
        seq_breakers=Kind.TEXTS,
    ),
    constructor("adaptive_p", target=_F, decay=_F, seed=_U),
    constructor("logit_bias", n_vocab=Kind.N_VOCAB, biases=Kind.BIASES),
    constructor("infill", vocab=Kind.VOCABULARY),
    grammar("grammar"),
    grammar("grammar_lazy", trigger_words=Kind.TEXTS, trigger_tokens=Kind.TOKENS),
    grammar("grammar_lazy_patterns", trigger_patterns=Kind.TEXTS, trigger_tokens=Kind.TOKENS),
)
BY_SAMPLER = {each.sampler: each for each in CONSTRUCTORS}
