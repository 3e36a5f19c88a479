"""Opens a model in one file, or in several files as llama.cpp's gguf-split writes them.

The rules are those of src/llama-model-loader.cpp in llama-cpp-python 0.3.36. The metadata come from
the first file. The names of the other files follow from its name (`NAME-00001-of-00003.gguf`), and
each file states its own number.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import InvalidModel
from lockstep.engine.gguf.file import GgufFile

COUNT, NUMBER, N_TENSORS = "split.count", "split.no", "split.tensors.count"
MOST_PARTS = (1 << 16) - 1  # llama.cpp stores the count in a uint16
NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5,})-of-(?P<count>\d{5,})\.gguf", re.DOTALL)


class SplitModel(GgufFile):
    """The tensors of all files; the metadata are those of the first file."""

    def __init__(self, files: Sequence[GgufFile]) -> None:
        first = files[0]
        self.version, self.metadata = first.version, first.metadata
        self.alignment, self.data_offset = first.alignment, first.data_offset
        self.header_end = first.header_end
        self._files = tuple(files)
        self._holders = {name: file for file in files for name in file.tensors}
        self.tensors = {name: file.tensors[name] for name, file in self._holders.items()}

    def raw(self, name: str) -> NDArray[np.uint8]:
        return self._holders[name].raw(name)

    @property
    def size(self) -> int:
        return sum(file.size for file in self._files)

    def release(self) -> None:
        for file in self._files:
            file.release()

    def close(self) -> None:
        for file in self._files:
            file.close()


def open_model(path: Path) -> GgufFile:
    """Open the file and all other parts of a split model. Raises EngineError, OSError."""
    file = GgufFile.open(path)
    count, _ = number_in(file, COUNT), number_in(file, NUMBER)  # either key may be missing
    if count <= 1:  # returned early, because reading a large vocabulary twice is slow
        return file
    file.close()
    paths = parts_of(path)
    files = list(map(opened_part, paths, range(len(paths))))
    check_tensors(path, files)
    return SplitModel(files)


def parts_of(path: Path) -> tuple[Path, ...]:
    """Return the paths of all parts of the model; one path for a model that is not split."""
    with GgufFile.open(path) as file:
        count, number = number_in(file, COUNT), number_in(file, NUMBER)
    if count <= 1:
        return (path,)
    if count > MOST_PARTS:
        raise InvalidModel(f"{COUNT} is {count}, expected at most {MOST_PARTS}")
    named = NAME.fullmatch(path.name)
    if named is None or (int(named["number"]), int(named["count"])) != (number + 1, count):
        expected = part_name("NAME", number, count)
        raise InvalidModel(f"it is part {number + 1} of {count}, but its name is not {expected}")
    paths = tuple(path.with_name(part_name(named["stem"], n, count)) for n in range(count))
    if number:
        raise InvalidModel(f"it is part {number + 1} of {count}: name the first, {paths[0].name}")
    return paths


def part_name(stem: str, number: int, count: int) -> str:
    return f"{stem}-{number + 1:05}-of-{count:05}.gguf"


def opened_part(path: Path, number: int) -> GgufFile:
    if not path.is_file():
        raise InvalidModel(f"the model is split, but its part {path.name} is missing")
    file = GgufFile.open(path)
    if NUMBER not in file.metadata or number_in(file, NUMBER) != number:
        raise InvalidModel(f"{path.name} does not say {NUMBER} = {number}, as part {number + 1}")
    return file


def number_in(file: GgufFile, key: str) -> int:
    found = file.metadata.get(key)
    if found is None:
        return 0
    if type(found.data) is not int:
        raise InvalidModel(f"{key} is {found.data!r:.80}, expected a number")
    return found.data


def check_tensors(path: Path, files: Sequence[GgufFile]) -> None:
    """Check that each tensor occurs once, and that their number is the one in the first file."""
    names = [name for file in files for name in file.tensors]
    if len(set(names)) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise InvalidModel(f"two of its {len(files)} parts hold the tensor {twice!r}")
    said = number_in(files[0], N_TENSORS)
    if said != len(names):
        raise InvalidModel(
            f"{N_TENSORS} is {said}, but the {len(files)} parts hold {len(names)} tensors"
        )
