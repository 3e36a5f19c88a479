"""A vocabulary: metadata -> frozen tokens, with the repairs that llama.cpp makes while loading.

Source: the parts of llama_vocab::impl::load, in src/llama-vocab.cpp of llama-cpp-python 0.3.36,
that all tokenizer models use. Missing ids are None (LLAMA_TOKEN_NULL there).

llama.cpp iterates over an unordered_map, and gives a role such as end of turn to the first token
with a known text. If there are two candidates, its choice depends on the C++ library; we choose the
lowest id. llama.cpp accepts `scores` and `token_type` arrays that are too long, and ignores the
extra entries; we refuse such arrays.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import InvalidModel
from lockstep.engine.hparams import Metadata as Metadata


class Attr:
    """Attributes of a token, in llama.cpp's bits; a repaired token can have several at once."""

    UNDEFINED = 0
    UNKNOWN = 1 << 0
    UNUSED = 1 << 1
    NORMAL = 1 << 2
    CONTROL = 1 << 3
    USER_DEFINED = 1 << 4
    BYTE = 1 << 5
    LSTRIP = 1 << 7
    RSTRIP = 1 << 8

    HIDDEN = CONTROL | UNKNOWN  # not read from text and not written to it, unless requested
    SPECIAL = HIDDEN | USER_DEFINED  # found in a text before other tokens


ATTR_OF_TYPE = {
    1: Attr.NORMAL,
    2: Attr.UNKNOWN,
    3: Attr.CONTROL,
    4: Attr.USER_DEFINED,
    5: Attr.UNUSED,
    6: Attr.BYTE,
}

# in the order of reading; a later key wins
ROLE_KEYS = (
    ("bos", "bos_token_id"),
    ("eos", "eos_token_id"),
    ("eot", "eot_token_id"),
    ("eom", "eom_token_id"),
    ("unk", "unknown_token_id"),
    ("sep", "seperator_token_id"),
    ("pad", "padding_token_id"),
    ("mask", "mask_token_id"),
    ("fim_pre", "fim_pre_token_id"),
    ("fim_suf", "fim_suf_token_id"),
    ("fim_mid", "fim_mid_token_id"),
    ("fim_pad", "fim_pad_token_id"),
    ("fim_rep", "fim_rep_token_id"),
    ("fim_sep", "fim_sep_token_id"),
    ("fim_pre", "prefix_token_id"),
    ("fim_suf", "suffix_token_id"),
    ("fim_mid", "middle_token_id"),
)

# if no key fills a role, a token with one of these texts does
ROLE_TEXTS = {
    "eot": "<|eot_id|> <|im_end|> <|end|> <end_of_turn> <|endoftext|> <|end_of_text|> <EOT> _<EOT> "
    "[EOT] <\uff5cend\u2581of\u2581sentence\uff5c> <end_of_utterance>",
    "eom": "<|eom_id|>",
    "fim_pre": "<|fim_prefix|> <fim-prefix> <fim_prefix> <\uff5cfim\u2581begin\uff5c> <PRE> "
    "\u2581<PRE> <|code_prefix|> <|prefix|>",
    "fim_suf": "<|fim_suffix|> <fim-suffix> <fim_suffix> <\uff5cfim\u2581hole\uff5c> <SUF> "
    "\u2581<SUF> <|code_suffix|> <|suffix|>",
    "fim_mid": "<|fim_middle|> <fim-middle> <fim_middle> <\uff5cfim\u2581end\uff5c> <MID> "
    "\u2581<MID> <|code_middle|> <|middle|>",
    "fim_pad": "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]",
    "fim_rep": "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>",
    "fim_sep": "<|file_sep|>",
}
EOG_TEXTS = (
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> "
    "<|endoftext|> </s> <|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> "
    "<eos> <turn|> <|tool_response> <\uff5cend\u2581of\u2581sentence\uff5c> [e~["
)
SHOWN_TEXTS = "<|channel|> <|message|> <|start|> <|constrain|>"


@dataclass(frozen=True, kw_only=True, slots=True)
class Defaults:
    """Values that a tokenizer model assumes for missing metadata."""

    bos: int | None = None
    eos: int | None = None
    unk: int | None = None
    sep: int | None = None
    pad: int | None = None
    mask: int | None = None
    add_space_prefix: bool = False
    add_bos: bool = False
    add_eos: bool = False
    add_sep: bool = False
    clean_spaces: bool = False  # no key changes this


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Vocabulary:
    """The tokens of a model. Sequences are indexed by id; texts are as stored (U+2581 is a
    space)."""

    texts: tuple[bytes, ...]
    scores: tuple[float, ...]  # float32 values; all zero if the file has none
    stored_attrs: tuple[int, ...]  # the file's attributes; some tokenizers are built from these
    attrs: tuple[int, ...]  # sums of Attr, repaired
    ids: Mapping[bytes, int]  # text -> id
    # tokens that are found in a text before others, the longest text first
    specials: tuple[int, ...]
    roles: Mapping[str, int | None]  # every name in ROLE_KEYS
    eog: frozenset[int]  # each of these ends a generation
    suppressed: tuple[int, ...]  # tokens that must not be sampled
    add_space_prefix: bool
    add_bos: bool
    add_eos: bool
    add_sep: bool
    remove_extra_whitespaces: bool
    clean_spaces: bool  # decoding removes spaces before punctuation

    @property
    def n_vocab(self) -> int:
        return len(self.texts)

    @property
    def bos(self) -> int | None:
        return self.roles["bos"]

    @property
    def eos(self) -> int | None:
        return self.roles["eos"]

    @property
    def unk(self) -> int | None:
        return self.roles["unk"]

    @property
    def sep(self) -> int | None:
        return self.roles["sep"]


@dataclass(kw_only=True, slots=True)
class VocabularyDraft:
    """A vocabulary while it is read and repaired."""

    texts: list[bytes]
    attrs: list[int]
    ids: dict[bytes, int]
    roles: dict[str, int | None]
    eog: set[int]

    def present(self, texts: str) -> list[int]:
        """Return ids, lowest first, of the space-separated texts that are tokens."""
        return sorted(self.ids[t] for t in texts.encode().split() if t in self.ids)

    def id_named(self, text: str) -> int:
        if text.encode() not in self.ids:
            raise InvalidModel(
                f"a model named like Phi-3 must have the token {text!r} in tokenizer.ggml.tokens"
            )
        return self.ids[text.encode()]


def read_vocabulary(metadata: Metadata, defaults: Defaults) -> Vocabulary:
    """Read the vocabulary. Raises InvalidModel, naming a key that is missing, of wrong type or
    length.
    """
    texts = read_texts(metadata)
    stored_attrs = read_attrs(metadata, len(texts))
    draft = VocabularyDraft(
        texts=texts,
        attrs=list(stored_attrs),
        ids={text: i for i, text in enumerate(texts)},
        roles=read_roles(metadata, defaults, len(texts)),
        eog=set(),
    )
    recognise_roles(draft)
    recognise_ends(draft)
    withdraw_ends(draft)
    specials = special_ids(draft)
    set_stripping(draft, metadata, specials)
    return Vocabulary(
        texts=tuple(texts),
        scores=tuple(read_scores(metadata, len(texts))),
        stored_attrs=tuple(stored_attrs),
        attrs=tuple(draft.attrs),
        ids=MappingProxyType(draft.ids),
        specials=tuple(specials),
        roles=MappingProxyType(draft.roles),
        eog=frozenset(draft.eog),
        suppressed=tuple(read_suppressed(metadata, len(texts))),
        add_space_prefix=read_flag(metadata, "add_space_prefix", defaults.add_space_prefix),
        add_bos=read_flag(metadata, "add_bos_token", defaults.add_bos),
        add_eos=read_flag(metadata, "add_eos_token", defaults.add_eos),
        add_sep=read_flag(metadata, "add_sep_token", defaults.add_sep),
        remove_extra_whitespaces=read_flag(metadata, "remove_extra_whitespaces", False),
        clean_spaces=defaults.clean_spaces,
    )


def special_ids(draft: VocabularyDraft) -> list[int]:
    """Return special ids, the longest text first. At equal length, the lower id comes first;
    llama.cpp has no rule for this.
    """
    ids = [i for i, attr in enumerate(draft.attrs) if attr & Attr.SPECIAL]
    return sorted(ids, key=lambda i: -len(draft.texts[i]))


# --- reading ------------------------------------------------------------------------------------


def read_string(metadata: Metadata, key: str) -> bytes:
    """Return the bytes under `key` up to the first NUL, as C sees them; empty if there is no such
    key."""
    if key not in metadata:
        return b""
    value = metadata[key].data
    if not isinstance(value, str):
        raise InvalidModel(f"{key} must be a string, got {value!r}")
    return c_string(value)


def c_string(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape").split(b"\0")[0]


def read_flag(metadata: Metadata, key: str, default: bool) -> bool:
    key = f"tokenizer.ggml.{key}"
    if key not in metadata:
        return default
    value = metadata[key].data
    if not isinstance(value, bool | np.bool_):
        raise InvalidModel(f"{key} must be a bool, got {value!r}")
    return bool(value)


def read_texts(metadata: Metadata) -> list[bytes]:
    key = "tokenizer.ggml.tokens"
    if key not in metadata:
        raise InvalidModel(f"the key {key!r} is missing: the model has no tokens")
    value = metadata[key].data
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise InvalidModel(f"{key} must be an array of strings, got a {type(value).__name__}")
    texts = [c_string(text) or f"[EMPTY_{i}]".encode() for i, text in enumerate(value)]
    first: dict[bytes, int] = {}
    for i, text in enumerate(texts):
        if first.setdefault(text, i) != i:  # llama.cpp aborts for duplicates
            raise InvalidModel(f"{key} must differ, but {first[text]} and {i} are both {text!r}")
    return texts


def read_array(metadata: Metadata, key: str, allowed: tuple[str, ...]) -> NDArray[Any] | None:
    """Return the array under `key`, whose element type must be one of those allowed."""
    if key not in metadata:
        return None
    value = metadata[key].data
    found = value.dtype.name if isinstance(value, np.ndarray) else type(value).__name__
    if found not in allowed:
        raise InvalidModel(f"{key} must be an array of {' or '.join(allowed)}, got {found}")
    numbers: NDArray[Any] = value
    return numbers


def read_numbers(
    metadata: Metadata, key: str, allowed: tuple[str, ...], n_vocab: int
) -> NDArray[Any] | None:
    """Return the array under `key`, which must have one entry per token."""
    numbers = read_array(metadata, key, allowed)
    if numbers is not None and len(numbers) != n_vocab:
        raise InvalidModel(f"{key} must have one entry per token: {n_vocab}, got {len(numbers)}")
    return numbers


def read_scores(metadata: Metadata, n_vocab: int) -> list[float]:
    key = "tokenizer.ggml.scores"
    numbers = read_numbers(metadata, key, ("float32", "int32"), n_vocab)
    if numbers is None:
        return [0.0] * n_vocab
    bad = np.flatnonzero(np.isnan(numbers))
    if bad.size:  # llama.cpp accepts this, and its heap is then unordered
        raise InvalidModel(f"{key} must be numbers, but that of token {bad[0]} is NaN")
    scores: list[float] = numbers.astype(np.float32).tolist()
    return scores


def read_attrs(metadata: Metadata, n_vocab: int) -> list[int]:
    types = read_numbers(metadata, "tokenizer.ggml.token_type", ("int32",), n_vocab)
    if types is None:
        return [Attr.NORMAL] * n_vocab
    return [ATTR_OF_TYPE.get(kind, Attr.UNDEFINED) for kind in types.tolist()]


def read_suppressed(metadata: Metadata, n_vocab: int) -> list[int]:
    """Return the suppressed ids in the order of the file; ids beyond the vocabulary are dropped."""
    found = read_array(metadata, "tokenizer.ggml.suppress_tokens", ("int32",))
    return [] if found is None else [i for i in found.tolist() if 0 <= i < n_vocab]


def read_roles(metadata: Metadata, defaults: Defaults, n_vocab: int) -> dict[str, int | None]:
    """Read the special ids. An id beyond the vocabulary counts as missing, because files write -1
    for "none".
    """
    roles: dict[str, int | None] = {role: getattr(defaults, role, None) for role, _ in ROLE_KEYS}
    for role, key in ROLE_KEYS:
        default, key = roles[role], f"tokenizer.ggml.{key}"
        if default is not None and default >= n_vocab:
            roles[role] = None
        if key not in metadata:
            continue
        value = metadata[key].data
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or not 0 <= value < 2**32:
            raise InvalidModel(f"{key} must be an unsigned 32-bit integer, got {value!r}")
        if value < n_vocab:
            roles[role] = int(value)
    return roles


# --- repairing ----------------------------------------------------------------------------------


def recognise_roles(draft: VocabularyDraft) -> None:
    for role, texts in ROLE_TEXTS.items():
        found = draft.present(texts)
        if found and draft.roles[role] is None:
            draft.roles[role] = found[0]
            draft.attrs[found[0]] |= Attr.CONTROL
    for i, attr in enumerate(draft.attrs):
        if attr & Attr.CONTROL and b"unused" in draft.texts[i]:
            draft.attrs[i] |= Attr.UNUSED


def recognise_ends(draft: VocabularyDraft) -> None:
    """Mark the tokens that end a generation, recognised by their text or role."""
    for i in draft.present(EOG_TEXTS):
        draft.eog.add(i)
        draft.attrs[i] |= Attr.CONTROL
    for i in draft.present(SHOWN_TEXTS):
        draft.attrs[i] = Attr.USER_DEFINED
    for role in ("fim_pad", "fim_rep", "fim_sep", "eos", "eot", "eom"):
        found = draft.roles[role]
        if found is not None:
            draft.eog.add(found)


def withdraw_ends(draft: VocabularyDraft) -> None:
    """Unmark the tokens of two model families that look like ends but are not."""
    texts = {draft.texts[i] for i in draft.eog}
    called = bool(texts & {b"<|call|>", b"<|calls|>"})
    if b"<|end|>" in texts and called and texts & {b"<|return|>", b"<|flush|>"}:
        withdraw(draft, b"<|end|>", Attr.USER_DEFINED)
    if b"</s>" in texts and texts & {b"<|tool_response>", b"<|plamo:eos|>"}:
        withdraw(draft, b"</s>", Attr.NORMAL)


def withdraw(draft: VocabularyDraft, text: bytes, attr: int) -> None:
    draft.eog.remove(draft.ids[text])
    draft.attrs[draft.ids[text]] = attr


def set_stripping(draft: VocabularyDraft, metadata: Metadata, specials: list[int]) -> None:
    """Mark tokens that strip white space before or after them. The model's name decides, because
    GGUF has no key for this.
    """
    pre = read_string(metadata, "tokenizer.ggml.pre")
    arch = read_string(metadata, "general.architecture")
    name = read_string(metadata, "general.name").lower()
    jina = (b"jina-v2-de", b"jina-v2-es", b"jina-v2-code")
    masked = (b"nomic-bert-moe", b"jina-bert-v3")
    if any(part in pre for part in jina) or any(part in arch for part in masked):
        set_mask_stripping(draft, "<mask>")
    elif b"phi-3" in name or b"phi3" in name:
        for i in (*specials, draft.id_named("</s>")):
            draft.attrs[i] |= Attr.RSTRIP
        for text in ("<unk>", "<s>", "<|endoftext|>"):
            draft.attrs[draft.id_named(text)] &= ~Attr.RSTRIP
    elif b"modern-bert" in name:
        set_mask_stripping(draft, "[MASK]")


def set_mask_stripping(draft: VocabularyDraft, text: str) -> None:
    for i in draft.present(text):
        draft.attrs[i] |= Attr.LSTRIP
