"""Facts in a model's file, for any architecture."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from lockstep.engine.architectures.base import Architecture
from lockstep.engine.errors import InvalidModel, Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.gguf.split_files import open_model
from lockstep.engine.model import architecture_of
from lockstep.engine.registry import import_members
from lockstep.harness.answers.base import facts_in

VOCABULARY, TOKENS = "tokenizer.ggml.model", "tokenizer.ggml.tokens"
POSITIONS = "position_embd.weight"
# Prefixes of tensor names after the layer. OF_STATES: layers that carry a state from token to
# token. OF_KEYS: layers that cache keys and values.
OF_STATES, OF_KEYS = ("ssm_", "shortconv.", "time_mix_"), ("attn_k", "attn_qkv")
# architectures for which a file that we refuse is broken; for others, llama.cpp accepts forms that
# our engine lacks, and reports broken files itself
IN_EVERY_FORM = ("llama",)
# values of tokenizer.ggml.model without a vocabulary; llama.cpp's own test models use the last
NO_VOCABULARY = ("", "none", "no_vocab", "test")
# bytes of weights; with a smaller model, a run that fills every cell takes about a second
SMALL = 16 << 20


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    architecture: str
    kind: str  # general.type: model, adapter, imatrix, ...
    n_tensors: int
    n_vocab: int  # 0: unknown
    has_vocabulary: bool
    # rows of a table of positions; 0: there is no table, and any position is possible
    n_positions: int
    not_ours: str  # reason why our own engine cannot run the model; "" if it can
    has_logits: bool  # our own graph decides, if there is one
    # the token that follows an encoder's text; None: the model is not an encoder with a decoder
    decoder_start: int | None
    n_bytes: int  # bytes of the weights

    @property
    def is_small(self) -> bool:
        return self.n_bytes <= SMALL

    @property
    def no_run(self) -> str:
        return why_no_run(self.architecture, self.kind, self.n_tensors)

    @property
    def no_choice(self) -> str:
        """Return why no engine can choose a wrong token; "" if an engine can."""
        one = "its vocabulary has only one token, so there is no choice"
        return self.no_run or (one if self.n_vocab == 1 else "")


def facts_of_model(path: Path) -> ModelFacts:
    """Return the facts of a model. Raises EngineError or OSError if the file is broken or is not a
    GGUF file."""
    with open_model(path) as file:
        architecture, kind = what_it_is(file)
        ours = our_graph(file, architecture, kind)
        return ModelFacts(
            architecture=architecture,
            kind=kind,
            n_tensors=len(file.tensors),
            n_vocab=size_of_vocabulary(file),
            has_vocabulary=vocabulary_of(file),
            n_positions=size_of_positions(file),
            not_ours=ours if isinstance(ours, str) else "",
            has_logits=not isinstance(ours, str) and not ours.embeds,
            decoder_start=decoder_start(file, architecture),
            n_bytes=size_of(file),
        )


def is_small(file: GgufFile) -> bool:
    return size_of(file) <= SMALL


def size_of(file: GgufFile) -> int:
    """Return the size of the file's weights in bytes."""
    return sum(tensor.n_bytes for tensor in file.tensors.values())


def what_it_is(file: GgufFile) -> tuple[str, str]:
    """Return the architecture, which is "" if the file names none, and the type of the file."""
    architecture, kind = (
        str(file.metadata[key].data) if key in file.metadata else default
        for key, default in (("general.architecture", ""), ("general.type", "model"))
    )
    return architecture, kind


def why_no_run(architecture: str, kind: str, n_tensors: int) -> str:
    """Return why no engine can run this file; "" if llama.cpp may be able to."""
    if not architecture:
        return "the file has no general.architecture, so it is not a model"
    if kind != "model":
        return f"the file is of type {kind!r}, not a model"
    return "" if n_tensors else "the file holds no tensors"


def decoder_start(file: GgufFile, architecture: str) -> int | None:
    """Return the id of the decoder's first token, as llama.cpp's tools choose it. Return None
    unless the file has both an encoder and a decoder."""
    if not has_both(file.tensors):
        return None
    for key in (f"{architecture}.decoder_start_token_id", "tokenizer.ggml.bos_token_id"):
        if key in file.metadata:
            return int(file.metadata[key].data)
    return 0


def has_both(tensors: Collection[str]) -> bool:
    """Return True if the file has tensors of an encoder and of a decoder, by llama.cpp's tensor
    names."""
    return all(any(name.startswith(part) for name in tensors) for part in ("enc.", "dec."))


def vocabulary_of(file: GgufFile) -> bool:
    """Return True if the file has a vocabulary. Return True as well for tokens without a vocabulary
    type. The missing key is refused later."""
    if VOCABULARY not in file.metadata:
        return TOKENS in file.metadata
    return str(file.metadata[VOCABULARY].data) not in NO_VOCABULARY


def size_of_vocabulary(file: GgufFile) -> int:
    """Return the vocabulary size from the metadata, or else the number of rows of the embedding
    matrix."""
    known = facts_in(file, file.size).n_vocab
    embeddings = file.tensors.get("token_embd.weight")
    return known or (embeddings.shape[0] if embeddings is not None else 0)


def size_of_positions(file: GgufFile) -> int:
    table = file.tensors.get(POSITIONS)
    return table.shape[0] if table is not None else 0


def too_long(n_positions: int, needed: int) -> str:
    """Return why the model cannot decode this many tokens; "" if it can."""
    if not 0 < n_positions < needed:
        return ""
    return (
        f"the model has {n_positions} positions ({POSITIONS}), but the run needs "
        f"{needed}; llama.cpp aborts after the last position (positions-beyond-the-table)"
    )


def our_graph(file: GgufFile, arch: str, kind: str) -> Architecture | str:
    """Return our graph of the architecture, or the reason why we have none. Raises InvalidModel for
    a broken model of an architecture that we support."""
    import_members("lockstep.engine.architectures")
    if arch not in Architecture.family:
        ours = ", ".join(sorted(Architecture.family))
        return f"our engine has no graph for {arch!r} (it has: {ours})"
    try:
        return architecture_of(file)(file)
    except Unsupported as error:
        return f"our graph for {arch!r} is incomplete: {error}"
    except InvalidModel as error:
        if kind == "model" and file.tensors and arch in IN_EVERY_FORM:
            raise
        return str(error)


def what_it_keeps(file: GgufFile) -> str:
    """Describe the data that the model stores about earlier tokens. If a fault appears only after
    earlier tokens, the fault must be in this data."""
    stems = [name.split(".", 2)[2] for name in file.tensors if name.startswith("blk.")]
    keys, states = (any(s.startswith(of) for s in stems) for of in (OF_KEYS, OF_STATES))
    state = "the state that each sequence carries on (of a scan, of a convolution)"
    if states and not keys:
        return state
    return "positions, mask, cache" + f", or {state}" * states
