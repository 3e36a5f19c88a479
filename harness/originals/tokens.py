"""Compares the tokenizer of a GGUF file with the checkpoint's: tokens, merges, special ids, chat
template."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lockstep.engine.tokenizers.pre_tokenizers import PRE_TOKENIZERS
from lockstep.engine.tokenizers.vocabulary import ROLE_KEYS
from lockstep.harness.adapters.parts.originals import CONTROL, UNUSED
from lockstep.harness.originals.checkpoint import OriginalCheckpoint
from lockstep.harness.originals.findings import (
    DifferenceKind,
    OriginalPart,
    PartResult,
    SkipReason,
)
from lockstep.harness.originals.pre_tokenizers import compare_pre_tokenizers
from lockstep.harness.originals.vocabulary import OriginalVocabulary, read_vocabulary

Metadata = Mapping[str, Any]  # values without types
PREFIX = "tokenizer.ggml"
MODELS = ("gpt2", "llama", "bert")
MAX_NOTED = 16  # tokens with the same kind of difference that are listed; all are counted
# special tokens: names in tokenizer_config.json, names in keys, and llama.cpp's default ids
SPECIAL = ("bos", "eos", "unk", "sep", "pad", "mask")  # llama.cpp uses BOS for CLS
KEY_NAMES = {"unk": "unknown", "sep": "seperator", "pad": "padding"}  # spelled as in llama.cpp
USUAL_IDS = {
    "llama": {"bos": 1, "eos": 2, "unk": 0},
    "gpt2": {"bos": 11, "eos": 11},
    "bert": {"bos": 101, "unk": 100, "sep": 102, "pad": 0, "mask": 103},
}
TEMPLATE = "tokenizer.chat_template"
TEMPLATE_FILES = ("tokenizer_config.json", "chat_template.jinja", "chat_template.json")
FLAG_WITHOUT = {"normalizer.strip_accents": "normalizer.lowercase"}  # used if the key is absent
# keys that are compared, or that llama.cpp ignores for these kinds of tokenizers
KNOWN_KEYS = {f"{PREFIX}.{key}" for _, key in ROLE_KEYS}
KNOWN_KEYS |= {f"{PREFIX}.add_{name}" for name in ("bos_token", "eos_token", "sep_token")}
KNOWN_KEYS |= {
    f"{PREFIX}.{name}"
    for name in (
        *("model", "pre", "tokens", "token_type", "scores", "merges", "token_type_count"),
        *("add_space_prefix", "remove_extra_whitespaces", "cls_token_id"),
        *("normalizer.lowercase", "normalizer.strip_accents"),
    )
}


def compare_tokenizers(checkpoint: OriginalCheckpoint, metadata: Metadata) -> PartResult:
    """Return the differences between the tokenizers. Raises InvalidModel."""
    result = PartResult(part=OriginalPart.tokenizer)
    model = metadata.get(f"{PREFIX}.model")
    tokens = metadata.get(f"{PREFIX}.tokens")
    if model is None or tokens is None:
        missing = "tokens" if tokens is None else "model"
        result.add(DifferenceKind.missing, f"{PREFIX}.{missing}", None, None)
        return result
    if model not in MODELS:
        result.skip(SkipReason.no_row, f"{PREFIX}.model")
        return result
    vocabulary = read_vocabulary(checkpoint, model)
    if not vocabulary.tokens:
        result.skip(SkipReason.no_file, "tokenizer.json")
    else:
        compare_tokens(result, vocabulary, tokens, metadata)
        compare_merges(result, vocabulary, model, metadata)
    if model == "gpt2" and checkpoint.tokenizer:
        compare_pre_tokenizers(result, checkpoint.tokenizer, metadata)
    if not vocabulary.library:
        result.skip(SkipReason.no_library, "tokenizer.model")
    elif model == "llama" and all(each.score is None for each in vocabulary.tokens.values()):
        result.skip(SkipReason.no_file, f"{PREFIX}.scores")
    compare_special(result, checkpoint, vocabulary, model, metadata)
    compare_roles(result, vocabulary, metadata)
    for name, wanted in vocabulary.flags.items():
        key, absent = f"{PREFIX}.{name}", f"{PREFIX}.{FLAG_WITHOUT.get(name, name)}"
        compare_flag(result, key, wanted, metadata.get(key, metadata.get(absent, True)), metadata)
    compare_templates(result, checkpoint, metadata)
    for key in metadata:
        if key.startswith("tokenizer.") and key not in KNOWN_KEYS and not is_template(key):
            result.skip(SkipReason.no_row, key)
    return result


def compare_tokens(
    result: PartResult, vocabulary: OriginalVocabulary, tokens: Sequence[str], metadata: Metadata
) -> None:
    """Compare texts, types and scores by id. Ids that the checkpoint lacks must be of type
    unused."""
    types, scores = (metadata.get(f"{PREFIX}.{key}") for key in ("token_type", "scores"))
    for key, values in (("token_type", types), ("scores", scores)):
        if values is not None and len(values) != len(tokens):
            result.add(DifferenceKind.shape, f"{PREFIX}.{key}", len(tokens), len(values))
            return
    result.compared += len(vocabulary.tokens)
    found = list(wrong_tokens(vocabulary, tokens, types, scores))
    counts = Counter(what for _, what, _, _ in found)
    seen: Counter[str] = Counter()
    for number, what, expected, got in found:
        seen[what] += 1
        if seen[what] > MAX_NOTED:
            result.unlisted += 1
            continue
        kind = DifferenceKind.missing if got is None else DifferenceKind.value
        detail = {"token": number, "what": what, "of_kind": counts[what]}
        result.add(kind, f"token {number}", expected, got, **detail)
    known = vocabulary.tokens.values()
    if types is None and any(token.added for token in known):
        result.add(DifferenceKind.missing, f"{PREFIX}.token_type", f"{len(tokens)} types", None)
    if scores is None and any(token.score is not None for token in known):
        result.add(DifferenceKind.missing, f"{PREFIX}.scores", f"{len(tokens)} scores", None)


def wrong_tokens(
    vocabulary: OriginalVocabulary, tokens: Sequence[str], types: Any, scores: Any
) -> Iterator[tuple[int, str, Any, Any]]:
    """Yield four values for each wrong token: its id, the wrong property, the expected value and
    the file's value. The file's value is None if it lacks the token."""
    for number, token in sorted(vocabulary.tokens.items()):
        if number >= len(tokens):
            yield number, "text", token.texts[0], None
            continue
        if tokens[number] not in token.texts:
            yield number, "text", token.texts[0], tokens[number]
        if types is not None and types[number] not in token.types:
            yield number, "type", token.types[0], int(types[number])
        if scores is not None and token.score is not None and scores[number] != token.score:
            yield number, "score", token.score, float(scores[number])
    for number in range(len(tokens)):
        if number not in vocabulary.tokens and types is not None and types[number] != UNUSED:
            yield number, "padding", UNUSED, int(types[number])


def compare_merges(
    result: PartResult, vocabulary: OriginalVocabulary, model: str, metadata: Metadata
) -> None:
    if model != "gpt2" or vocabulary.merges is None:
        return
    key = f"{PREFIX}.merges"
    wanted, got = vocabulary.merges, metadata.get(key)
    result.compared += 1
    if got is None:
        result.add(DifferenceKind.missing, key, len(wanted), None)
    elif list(got) != wanted:
        pairs = enumerate(zip(wanted, got, strict=False))
        at = next((n for n, (a, b) in pairs if a != b), min(len(wanted), len(got)))
        values = [each[at] if at < len(each) else None for each in (wanted, got)]
        sizes = {"merge": at, "sizes": [len(wanted), len(got)]}
        result.add(DifferenceKind.value, key, *values, **sizes)


def compare_special(
    result: PartResult,
    checkpoint: OriginalCheckpoint,
    vocabulary: OriginalVocabulary,
    model: str,
    metadata: Metadata,
) -> None:
    """Compare the ids of special tokens, and the flags that add them to texts."""
    said = checkpoint.read_object("tokenizer_config.json")
    usual, added = USUAL_IDS.get(model, {}), added_by_template(checkpoint)
    for name in SPECIAL:
        key = f"{PREFIX}.{KEY_NAMES.get(name, name)}_token_id"
        wanted = special_ids(checkpoint, said, vocabulary, name)
        if name == "eos" and added.get("last") in vocabulary.ids:
            # some converters choose the token that ends texts
            wanted.append(vocabulary.ids[added["last"]])
        if wanted:
            result.compared += 1
            got = metadata.get(key, usual.get(name))
            if got not in wanted:
                kind = DifferenceKind.value if key in metadata else DifferenceKind.missing
                result.add(kind, key, wanted[0], got)
    for name, place in (("bos", "first"), ("eos", "last")):
        key, flag = f"{PREFIX}.add_{name}_token", said.get(f"add_{name}_token")
        if not isinstance(flag, bool):
            if place not in added:
                continue
            flag = added[place] is not None
        got = metadata.get(key, is_usually_added(name, model, metadata))
        compare_flag(result, key, flag, got, metadata)


def compare_flag(result: PartResult, key: str, wanted: bool, got: Any, metadata: Metadata) -> None:
    """Compare a flag. `got` is None if llama.cpp ignores the key here."""
    result.compared += 1
    if got is not None and got is not wanted:
        kind = DifferenceKind.value if key in metadata else DifferenceKind.missing
        result.add(kind, key, wanted, got)


def compare_roles(result: PartResult, vocabulary: OriginalVocabulary, metadata: Metadata) -> None:
    """Check the ids that the checkpoint's files do not name, such as the end of a turn. Each must
    be the id of a special token."""
    named = {KEY_NAMES.get(name, name) for name in SPECIAL}
    for _, key in ROLE_KEYS:
        number = metadata.get(f"{PREFIX}.{key}")
        if key.removesuffix("_token_id") in named or number is None or not vocabulary.tokens:
            continue
        result.compared += 1
        token = vocabulary.tokens.get(number) if type(number) is int else None
        if token is None or not (token.added or CONTROL in token.types):
            text = None if token is None else token.texts[0]
            result.add(DifferenceKind.ordinary, f"{PREFIX}.{key}", None, number, text=text)


def is_usually_added(name: str, model: str, metadata: Metadata) -> bool | None:
    """Return llama.cpp's default for a missing key; None if llama.cpp adds another token in its
    place."""
    if name == "eos":
        return None if model == "bert" else False  # bert ends texts with SEP instead
    if model != "gpt2":
        return True
    pre = PRE_TOKENIZERS.get(str(metadata.get(f"{PREFIX}.pre", "default")))
    return pre is not None and pre.add_bos


def special_ids(
    checkpoint: OriginalCheckpoint,
    said: Mapping[str, Any],
    vocabulary: OriginalVocabulary,
    name: str,
) -> list[int]:
    """Return the ids that a special token may have. The id that tokenizer_config.json gives comes
    first."""
    names = {"bos": ("bos", "cls"), "eos": ("eos", "sep")}.get(name, (name,))
    for each in names:
        entry = said.get(f"{each}_token")
        text = entry.get("content") if isinstance(entry, Mapping) else entry
        if isinstance(text, str) and text in vocabulary.ids:
            return [vocabulary.ids[text]]
    found = checkpoint.config.get(f"{name}_token_id")
    if found is None and isinstance(checkpoint.config.get("text_config"), Mapping):
        found = checkpoint.config["text_config"].get(f"{name}_token_id")
    return [found] if type(found) is int and found >= 0 else []


def added_by_template(checkpoint: OriginalCheckpoint) -> dict[str, Any]:
    """Return the tokens that tokenizer.json adds at both ends of a text. None means no token.
    Return {} if the file does not say which tokens are added."""
    post = checkpoint.tokenizer.get("post_processor")
    parts = post.get("processors", [post]) if isinstance(post, Mapping) else []
    for part in parts if isinstance(parts, list) else []:
        single = part.get("single") if isinstance(part, Mapping) else None
        if isinstance(single, list) and len(single) > 1:
            ends = {"first": single[0], "last": single[-1]}
            tokens = {
                end: row.get("SpecialToken")
                for end, row in ends.items()
                if isinstance(row, Mapping)
            }
            return {
                end: token.get("id") if isinstance(token, Mapping) else None
                for end, token in tokens.items()
            }
    return {}


def compare_templates(
    result: PartResult, checkpoint: OriginalCheckpoint, metadata: Metadata
) -> None:
    wanted = dict(templates_of(checkpoint))
    got = {key: text for key, text in metadata.items() if is_template(key)}
    if got and not any(map(checkpoint.has, TEMPLATE_FILES)):
        result.skip(SkipReason.no_file, TEMPLATE_FILES[0])
        return
    for key in sorted(wanted.keys() | got.keys()):
        result.compared += 1
        pair = wanted.get(key), got.get(key)
        if pair[0] == pair[1]:
            continue
        kinds = {(False, True): DifferenceKind.missing, (True, False): DifferenceKind.unexpected}
        kind = kinds.get((pair[0] is None, pair[1] is None), DifferenceKind.value)
        a, b = (each or "" for each in pair)
        at = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
        at = min(len(a), len(b)) if at is None else at
        shown = (each[at : at + 40] if each is not None else None for each in pair)
        result.add(kind, key, *shown, character=at, sizes=[len(a), len(b)])


def is_template(key: str) -> bool:
    return key == TEMPLATE or key.startswith(f"{TEMPLATE}.")


def templates_of(checkpoint: OriginalCheckpoint) -> Iterator[tuple[str, str]]:
    """Yield the key and the text of each chat template."""
    found = checkpoint.read_object("tokenizer_config.json").get("chat_template")
    path = checkpoint.folder / "chat_template.jinja"
    if found is None and path.is_file():
        found = checkpoint.read_text("chat_template.jinja")
    elif found is None:
        found = checkpoint.read_object("chat_template.json").get("chat_template")
    if isinstance(found, str):
        yield TEMPLATE, found
    for row in found if isinstance(found, list) else []:
        if isinstance(row, Mapping) and isinstance(row.get("template"), str):
            name = str(row.get("name"))
            yield (TEMPLATE if name == "default" else f"{TEMPLATE}.{name}"), row["template"]
