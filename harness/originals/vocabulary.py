"""The vocabulary that a GGUF file should hold: texts and types of tokens, scores, merges. The
source is tokenizer.json, or tokenizer.model, which the sentencepiece library reads."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lockstep.engine.errors import InvalidModel
from lockstep.harness.adapters.parts.originals import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
)
from lockstep.harness.originals.checkpoint import MAX_TOKENIZER_BYTES, OriginalCheckpoint

SPACE = "\u2581"  # SentencePiece writes a space so
BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
# added tokens that converters treat as control tokens although they are not marked special
LOOKS_SPECIAL = re.compile(
    r"<pad>|<mask>|<2mass>|\[@BOS@\]|<\|.*\|>|<｜.*｜>|<unused.*>", re.DOTALL
)


@dataclass(kw_only=True)
class OriginalToken:
    """A token with the texts and types that the file may hold."""

    texts: tuple[str, ...]
    types: tuple[int, ...]
    score: float | None = None  # None: any score is right
    added: bool = False


@dataclass(kw_only=True)
class OriginalVocabulary:
    """The tokens by id, the ids of added tokens by text, and merges as lines. None means
    unknown."""

    tokens: dict[int, OriginalToken] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    merges: list[str] | None = None
    flags: dict[str, bool] = field(default_factory=dict)  # by key; those that the files tell
    # False: there is a tokenizer.model, but the library that reads it is missing
    library: bool = True


def read_vocabulary(checkpoint: OriginalCheckpoint, model: str) -> OriginalVocabulary:
    """Return the vocabulary of a checkpoint; empty if it has none. `model` is the value of
    tokenizer.ggml.model.

    Raises InvalidModel.
    """
    found = OriginalVocabulary()
    described = checkpoint.tokenizer.get("model")
    if model == "llama" and (checkpoint.folder / "tokenizer.model").exists():
        read_pieces(checkpoint, found)
    if not found.tokens and isinstance(described, Mapping):
        read_described(described, found, model)
    known = bool(found.tokens)
    add_tokens(checkpoint, found, model)
    if not known:  # added tokens alone are no vocabulary
        found.tokens.clear()
    found.flags |= FLAGS[model](checkpoint) if model in FLAGS else {}
    return found


def flags_of_bert(checkpoint: OriginalCheckpoint) -> dict[str, bool]:
    """Return the flags of BertNormalizer. Without strip_accents, it does what lowercase says."""
    steps = steps_of(checkpoint, "normalizer")
    found = next((each for each in steps if each.get("type") == "BertNormalizer"), {})
    lower, strip = found.get("lowercase"), found.get("strip_accents")
    flags = {"lowercase": lower, "strip_accents": lower if strip is None else strip}
    return {f"normalizer.{key}": flag for key, flag in flags.items() if isinstance(flag, bool)}


def flags_of_pieces(checkpoint: OriginalCheckpoint) -> dict[str, bool]:
    adds = adds_space(checkpoint)
    return {} if adds is None else {"add_space_prefix": adds}


def adds_space(checkpoint: OriginalCheckpoint) -> bool | None:
    """Return True if tokenizer.json or tokenizer_config.json puts a space before a text; None if
    neither says so. tokenizer.json has priority, as in transformers."""
    steps = [*steps_of(checkpoint, "normalizer"), *steps_of(checkpoint, "pre_tokenizer")]
    schemes = [each.get("prepend_scheme") for each in steps if each.get("type") == "Metaspace"]
    if any(each.get("type") == "Prepend" and each.get("prepend") == SPACE for each in steps):
        return True
    if schemes:
        return schemes[0] != "never"
    said = checkpoint.read_object("tokenizer_config.json").get("add_prefix_space")
    if isinstance(said, bool):
        return said
    return False if any(each.get("type") == "Replace" for each in steps) else None


def steps_of(checkpoint: OriginalCheckpoint, name: str) -> list[Mapping[str, Any]]:
    """Return the steps of a normalizer or pre-tokenizer of tokenizer.json, without sequences."""
    found = checkpoint.tokenizer.get(name)
    if not isinstance(found, Mapping):
        return []
    inner = found.get("normalizers", found.get("pretokenizers", [found]))
    return [each for each in inner if isinstance(each, Mapping)] if isinstance(inner, list) else []


FLAGS = {"bert": flags_of_bert, "llama": flags_of_pieces}


def read_described(described: Mapping[str, Any], found: OriginalVocabulary, model: str) -> None:
    """Add the tokens and merges of tokenizer.json's model. Raises InvalidModel."""
    vocab = described.get("vocab")
    if isinstance(vocab, list):  # Unigram has pairs of text and score
        pairs = [(row[0], at) for at, row in enumerate(vocab) if isinstance(row, list) and row]
    elif isinstance(vocab, Mapping):
        pairs = list(vocab.items())
    else:
        raise InvalidModel("tokenizer.json: model.vocab is neither an object nor a list")
    for text, number in pairs:
        if not isinstance(text, str) or type(number) is not int or number < 0:
            raise InvalidModel(f"tokenizer.json: {text!r:.40} has the id {number!r:.40}")
        types: tuple[int, ...] = (NORMAL, UNUSED) if model == "llama" else (NORMAL,)
        if model == "llama" and BYTE_TOKEN.fullmatch(text):
            types = (BYTE,)
        elif text == described.get("unk_token"):
            types = (UNKNOWN, CONTROL, NORMAL)
        found.tokens[number] = OriginalToken(texts=(file_text(text, model),), types=types)
        found.ids.setdefault(text, number)
    merges = described.get("merges")
    if isinstance(merges, list):
        found.merges = [merge_line(each) for each in merges]


def file_text(text: str, model: str) -> str:
    """Return a token's text as the GGUF file has it. For WordPiece, a GGUF file marks the
    beginnings of words, not the continuations."""
    if model != "bert":
        return text
    return text[2:] if text.startswith("##") else SPACE + text


def merge_line(merge: Any) -> str:
    """Return a merge as the file has it. A space within a part becomes the character 256 places
    later, as in byte-level BPE."""
    if isinstance(merge, str):
        return merge
    if not isinstance(merge, list) or not all(isinstance(part, str) for part in merge):
        raise InvalidModel(f"tokenizer.json: a merge is {merge!r:.60}; expected two texts")
    return " ".join(part.replace(" ", chr(ord(" ") + 256)) for part in merge)


def read_pieces(checkpoint: OriginalCheckpoint, found: OriginalVocabulary) -> None:
    """Add the tokens of tokenizer.model, with scores and types."""
    try:
        import sentencepiece
    except ImportError:
        found.library = False
        return
    path = checkpoint.folder / "tokenizer.model"
    if path.stat().st_size > MAX_TOKENIZER_BYTES:
        raise InvalidModel(f"{path} has more than {MAX_TOKENIZER_BYTES:,} bytes")
    pieces = sentencepiece.SentencePieceProcessor()
    try:
        pieces.LoadFromFile(str(path))
    except (OSError, RuntimeError) as error:
        raise InvalidModel(f"{path} is not a SentencePiece model: {error!s:.200}") from None
    found.flags["add_space_prefix"] = "".join(pieces.EncodeAsPieces("a")).startswith(SPACE)
    for number in range(pieces.GetPieceSize()):
        kinds = (
            (pieces.IsUnknown, UNKNOWN),
            (pieces.IsControl, CONTROL),
            (pieces.IsUnused, UNUSED),
            (pieces.IsByte, BYTE),
        )
        kind = next((kind for is_kind, kind in kinds if is_kind(number)), NORMAL)
        text = pieces.IdToPiece(number)
        # user-defined symbols have this type too
        types = (kind, USER_DEFINED) if kind == NORMAL else (kind,)
        score = pieces.GetScore(number)
        found.tokens[number] = OriginalToken(texts=(text,), types=types, score=score)
        found.ids.setdefault(text, number)


def add_tokens(checkpoint: OriginalCheckpoint, found: OriginalVocabulary, model: str) -> None:
    """Add the tokens that tokenizer.json and tokenizer_config.json list as added tokens."""
    rows: list[tuple[Any, Any]] = []
    listed = checkpoint.tokenizer.get("added_tokens")
    if isinstance(listed, list):
        rows += [(row.get("id"), row) for row in listed if isinstance(row, Mapping)]
    decoder = checkpoint.read_object("tokenizer_config.json").get("added_tokens_decoder")
    if isinstance(decoder, Mapping):
        rows += [(int(n) if str(n).isdecimal() else None, row) for n, row in decoder.items()]
    for number, row in rows:
        text = row.get("content") if isinstance(row, Mapping) else None
        if type(number) is not int or not isinstance(text, str):
            raise InvalidModel(f"tokenizer.json: an added token is {row!r:.80}")
        if row.get("special"):
            types = (CONTROL, UNKNOWN) if "unk" in text.lower() else (CONTROL,)
        elif LOOKS_SPECIAL.fullmatch(text):
            types = (USER_DEFINED, CONTROL)
        else:
            types = (USER_DEFINED,)
        texts = (text, text.replace(SPACE, " "))
        if model == "bert":  # converters write added tokens that are not special like words
            texts = (text, file_text(text, model))
        found.tokens[number] = OriginalToken(texts=texts, types=types, added=True)
        found.ids[text] = number
