"""Whole models with a small fault: one number, pair or tensor contradicts the graph.

Every parser can read such a file. The file tests the loader, which runs after the parser. The
models are tiny, and have several architectures. The seed, the number and the models determine a
case.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from lockstep.engine.gguf.fields import SCALARS, ValueType
from lockstep.harness.context.runner import Session
from lockstep.harness.fuzzers.gguf.draft import FileDraft, KeyAndValue
from lockstep.harness.fuzzers.gguf.grammar import EDGES, DrawnNumbers, FileCase, numbers_of
from lockstep.harness.fuzzers.gguf.shrink import draft_of
from lockstep.harness.shadow.models import make_variant
from lockstep.harness.synth.any_arch import variant_named

MODELS = "models"
ARCHITECTURES = (
    *("llama", "qwen2", "gemma2", "phi3", "deepseek2", "mamba", "rwkv7", "bert", "t5", "granite"),
)
WHOLE = {int(kind): SCALARS[kind].size for kind in ValueType if kind.name in ("U32", "I32", "U64")}
F32 = int(ValueType.F32)
VOCABULARY = b"tokenizer."


def tiny_models(session: Session) -> list[bytes]:
    """Return the bytes of the tiny models. session: llama.cpp, which names the tensors of an
    architecture."""
    with TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{name}.gguf" for name in ARCHITECTURES]
        for name, path in zip(ARCHITECTURES, paths, strict=True):
            make_variant(variant_named(name), path, session=session)
        return [path.read_bytes() for path in paths]


def model_cases(seed: int, first: int, count: int, models: Sequence[bytes]) -> list[FileCase]:
    """Return the cases from `first` on. The cases use each model in turn, and the first case of
    each model has no change."""
    drawn = numbers_of(seed, MODELS, first, count)
    return [one_case(first + i, draw, models) for i, draw in enumerate(drawn)]


def one_case(number: int, draw: DrawnNumbers, models: Sequence[bytes]) -> FileCase:
    raw = models[number % len(models)]
    if number < len(models):
        return FileCase(number, raw)
    draft = draft_of(raw)
    assert draft is not None  # the model was written by us
    draft.n_pairs = draft.n_rows = None  # both counts follow from the contents
    change = CHANGES[draw.below(len(CHANGES))]
    change(draft, draw)
    return FileCase(number, draft.raw())


def other_number(draft: FileDraft, draw: DrawnNumbers) -> None:
    """Replace a number by an extreme integer, or change it a little."""
    pair = chosen_pair(draft, draw, set(WHOLE))
    size = len(pair.value)
    word = EDGES[draw.below(len(EDGES))]
    if draw.below(2):
        word = int.from_bytes(pair.value, "little") + draw.below(9) - 4
    pair.value = (word % (1 << 8 * size)).to_bytes(size, "little")


def other_type(draft: FileDraft, draw: DrawnNumbers) -> None:
    chosen_pair(draft, draw, {int(ValueType.U32)}).type = F32


def chosen_pair(draft: FileDraft, draw: DrawnNumbers, types: set[int]) -> KeyAndValue:
    some = [p for p in draft.pairs if p.type in types and not p.key.startswith(VOCABULARY)]
    return some[draw.below(len(some))]


def without_a_pair(draft: FileDraft, draw: DrawnNumbers) -> None:
    del draft.pairs[draw.below(len(draft.pairs))]


def rename_tensor(draft: FileDraft, draw: DrawnNumbers) -> None:
    draft.rows[draw.below(len(draft.rows))].name += b"x"


def transpose_tensor(draft: FileDraft, draw: DrawnNumbers) -> None:
    row = draft.rows[draw.below(len(draft.rows))]
    row.ne = row.ne[::-1]


def of_other_type(draft: FileDraft, draw: DrawnNumbers) -> None:
    """Replace the type F32 by I32, which has as many bytes but cannot hold weights."""
    draft.rows[draw.below(len(draft.rows))].type = 26


CHANGES: tuple[Callable[[FileDraft, DrawnNumbers], None], ...] = (
    *(other_number, other_number, other_number, other_number, other_type, without_a_pair),
    *(rename_tensor, transpose_tensor, of_other_type),
)
