"""The pre-tokenizer that a GGUF file names, against what tokenizer.json says it does."""

from collections.abc import Mapping
from typing import Any

from lockstep.harness.adapters.parts.originals import ORIGINALS
from lockstep.harness.originals.findings import DifferenceKind, PartResult, SkipReason

KEY = "tokenizer.ggml.pre"
Steps = tuple[tuple[Any, ...], ...]


def compare_pre_tokenizers(
    result: PartResult, tokenizer: Mapping[str, Any], metadata: Mapping[str, Any]
) -> None:
    """Compare normaliser and cuts with those of the models that have such a name.

    Only names of `ORIGINALS` can be compared. Two names may mean the same.
    """
    name = metadata.get(KEY, "")
    said = steps_of(tokenizer.get("normalizer"), tokenizer.get("pre_tokenizer"))
    same = [each for each, row in ORIGINALS.items() if steps_of(*row[:2]) == said]
    if name in ORIGINALS and (name in same or same):
        result.compared += 1
        if name not in same:
            kind = DifferenceKind.value if KEY in metadata else DifferenceKind.missing
            result.add(kind, KEY, same[0], name)
    else:
        result.skip(SkipReason.no_row, KEY)


def steps_of(*parts: Any) -> Steps:
    """Return what normaliser and pre-tokenizer do, one step each, without what changes no id."""
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
