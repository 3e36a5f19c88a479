"""A model split over several files, as llama.cpp's gguf-split writes them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.gguf.split_files import part_name
from lockstep.harness.synth.gguf_writer import write_gguf


def write_parts(
    model: Path, folder: Path, counts: Sequence[int], *, keys: dict[str, Any] | None = None
) -> list[Path]:
    """Write the parts. counts: the number of tensors in each part. keys: metadata that replaces
    that of the first part."""
    paths = [folder / part_name(model.stem, n, len(counts)) for n in range(len(counts))]
    with GgufFile.open(model) as file:
        infos = iter(file.tensors.values())
        for number, (path, count) in enumerate(zip(paths, counts, strict=True)):
            head = {} if number else {**file.metadata, **(keys or {})}
            split = {
                "split.no": ("U16", number),
                "split.count": ("U16", len(counts)),
                "split.tensors.count": ("I32", len(file.tensors)),
            }
            own = [next(infos) for _ in range(count)]
            rows = [(i.name, i.ne, i.type.name, file.raw(i.name)) for i in own]
            write_gguf(path, {**split, **head} if number == 0 else split, rows)
    return paths
