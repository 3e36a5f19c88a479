"""Small models for tests: built-in models, changed copies of them, and runs of them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.model import Model
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.reference import ReferenceOps
from lockstep.harness.adapters.reference import Reference as ReferenceEngine
from lockstep.harness.records import EXACT, Request, Settings, Site
from lockstep.harness.synth.builtin import BUILTIN
from lockstep.harness.synth.gguf_writer import gguf_bytes
from lockstep.harness.synth.llama import LlamaRecipe, metadata, tensors, write_llama

SHARED_STORIES = Path(__file__).resolve().parents[1].parent / "shared/models/stories260K.gguf"
NO_STORIES = "no sibling folder shared/ with models/stories260K.gguf: nothing was compared on it"

LANES = 16
Values = dict[Site, NDArray[Any]]


def builtin(name: str, folder: Path) -> Path:
    path = folder / f"{name}.gguf"
    if not path.exists():
        write_llama(BUILTIN[name], path)
    return path


def written(folder: Path, name: str = "made.gguf", **recipe: Any) -> Path:
    path = folder / name
    write_llama(LlamaRecipe(**recipe), path)
    return path


def with_values(
    model: Path, copy: Path, tensor: str, change: Callable[[NDArray[Any]], Any]
) -> Path:
    """Return a copy in which `change` has replaced the values of an F32 tensor, (rows, width)."""
    with GgufFile.open(model) as file:
        info = file.tensors[tensor]
        assert info.type.name == "F32"
        at = file.data_offset + info.offset
    raw = bytearray(model.read_bytes())
    values = np.frombuffer(raw, "<f4", info.n_elements, at).reshape(-1, info.ne[0])
    with np.errstate(all="ignore"):
        values[:] = np.asarray(change(values.copy())).astype("<f4")
    copy.write_bytes(raw)
    return copy


def with_changed_weight(
    model: Path, copy: Path, tensor: str, row: int, column: int, change: float
) -> Path:
    """Return a copy in which one weight of an F32 matrix is larger by `change`."""

    def larger(values: NDArray[Any]) -> NDArray[Any]:
        values[row, column] += np.float32(change)
        return values

    return with_values(model, copy, tensor, larger)


def with_metadata(path: Path, recipe: LlamaRecipe, **changes: Any) -> Path:
    """Return the recipe's model with changed metadata; None removes a key."""
    keys = metadata(recipe) | {key.replace("__", "."): value for key, value in changes.items()}
    kept = {key: value for key, value in keys.items() if value is not None}
    path.write_bytes(gguf_bytes(kept, tensors(recipe)))
    return path


def with_tensor_type(model: Path, copy: Path, tensor: str, type_id: int) -> Path:
    """Return a copy whose table gives the tensor another type; its bytes stay."""
    with GgufFile.open(model) as file:
        info = file.tensors[tensor]
    raw = bytearray(model.read_bytes())
    name = tensor.encode()
    after = raw.index(len(name).to_bytes(8, "little") + name) + 8 + len(name)
    after += 4 + 8 * len(info.ne)
    raw[after : after + 4] = type_id.to_bytes(4, "little")
    copy.write_bytes(raw)
    return copy


# --- runs -----------------------------------------------------------------------------------


def opened(path: Path, settings: Settings = EXACT, ops: ReferenceOps | None = None) -> Model:
    return Model(
        path,
        ops or Mirror(settings.n_threads, settings.n_ctx),
        type_k=settings.type_k,
        type_v=settings.type_v,
        flash_attn=settings.flash_attn,
        n_ctx=settings.n_ctx,
        n_ubatch=settings.n_ubatch,
    )


def some_batches(n_vocab: int = 384) -> tuple[Batch, ...]:
    """Return a prompt of 12 tokens, and a single token."""
    tokens = [(7 * i * i + 11) % n_vocab for i in range(13)]
    return Batch.of(tokens[:12]), Batch.of(tokens[12:], start=12)


def traced(
    path: Path,
    settings: Settings = EXACT,
    replace: Mapping[Site, NDArray[Any]] | None = None,
    make: Callable[[Path, Settings], ReferenceEngine] = ReferenceEngine,
    batches: tuple[Batch, ...] = (),
) -> Values:
    """Return every site of our own engine's run."""
    engine = make(path, settings)
    request = Request(batches=batches or some_batches(), capture=True, replace=replace or {})
    trace = engine.evaluate(request).trace
    engine.close()
    assert trace is not None
    return trace.values()


def changed(values: Values, site: Site, index: tuple[int, ...], by: float) -> Values:
    """Return a copy with one changed element of one tensor."""
    value = values[site].copy()
    value[index] += np.asarray(by).astype(value.dtype)
    return {**values, site: value}
