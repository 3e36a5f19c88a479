"""Compares the pre-tokenizer that a GGUF file names with the steps in tokenizer.json."""

from collections.abc import Mapping
from typing import Any

from lockstep.engine.tokenizers.pre_tokenizers import PRE_TOKENIZERS
from lockstep.harness.adapters.parts.originals import ORIGINALS
from lockstep.harness.originals.findings import DifferenceKind, PartResult, SkipReason

KEY = "tokenizer.ggml.pre"
Steps = tuple[tuple[Any, ...], ...]


def compare_pre_tokenizers(
    result: PartResult, tokenizer: Mapping[str, Any], metadata: Mapping[str, Any]
) -> None:
    """Compare tokenizer.json's normaliser and pre-tokenizer with the steps that llama.cpp performs
    for the name in the file.

    Only the pre-tokenizers in `ORIGINALS` can be compared. In llama.cpp, several names may mean the
    same steps.
    """
    said = steps_of(tokenizer.get("normalizer"), tokenizer.get("pre_tokenizer"))
    same = [each for each, row in ORIGINALS.items() if each and steps_of(*row[:2]) == said]
    got = PRE_TOKENIZERS.get(str(metadata.get(KEY)))
    if KEY not in metadata:  # llama.cpp warns, and splits words unlike any original
        result.compared += 1
        result.add(DifferenceKind.missing, KEY, same[0] if same else None, None)
    elif not same:
        result.skip(SkipReason.no_row, KEY)
    else:
        result.compared += 1
        if got is None or got.kind not in {PRE_TOKENIZERS[each].kind for each in same}:
            result.add(DifferenceKind.value, KEY, same[0], metadata[KEY])


def steps_of(*parts: Any) -> Steps:
    """Return the steps of normaliser and pre-tokenizer, without those options that cannot change an
    id."""
    steps: list[tuple[Any, ...]] = []
    for part in parts:
        if not isinstance(part, Mapping):
            continue
        rows = part.get("pretokenizers", part.get("normalizers", [part]))
        for row in rows if isinstance(rows, list) else []:
            if isinstance(row, Mapping):
                pattern = row.get("pattern")
                pattern = tuple(pattern.items()) if isinstance(pattern, Mapping) else pattern
                names = ("behavior", "use_regex", "individual_digits", "add_prefix_space")
                steps.append((row.get("type"), repr(pattern), *map(row.get, names)))
    return tuple(steps)
