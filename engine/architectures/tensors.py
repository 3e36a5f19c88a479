"""A table of tensors with symbolic shapes, against which an opened file is checked."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping

from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.hparams import Hparams
from lockstep.engine.weights import Weight, Weights

LAYER = re.compile(r"blk\.(0|[1-9][0-9]*)\.(.+)")
Table = Mapping[str, tuple[str, ...]]


def table(text: str) -> Table:
    """Parse a table of tensors. Each line has a name and the hyperparameters of a shape, slowest
    first.

    `blk.*.` stands for every layer. `?` after a name: the tensor may be absent. `?kind`: the tensor
    may be absent from layers of other kinds.
    """
    lines = (line.split() for line in text.strip().splitlines())
    return {name: tuple(shape) for name, *shape in lines}


class Tensors:
    """The tensors of a file, each with the shape that the hyperparameters give it."""

    def __init__(self, file: GgufFile, hparams: Hparams, shapes: Table) -> None:
        self.weights, self.hparams = Weights(file), hparams
        self.shapes = {name.partition("?")[0]: shape for name, shape in shapes.items()}
        # by name: the shape in numbers, once it was requested
        self.sizes: dict[str, tuple[int, ...]] = {}
        # optional tensors, with the kind of layers in which they are required
        parts = (name.partition("?") for name in shapes)
        self.optional = {name: kind for name, mark, kind in parts if mark}

    def check(self, arch: str, kinds: Callable[[int], Collection[str]]) -> None:
        """Refuse a file that lacks a tensor, or has a tensor that would go unused. kinds: returns
        the kinds of a layer.

        The file is refused before any long loop over its layers, because it may state any number of
        layers.
        """
        for name in self.weights.file.tensors:
            found = LAYER.fullmatch(name)
            layer = int(found[1]) if found else 0
            general = f"blk.*.{found[2]}" if found else name
            if general not in self.shapes or layer >= self.hparams.n_layer:
                raise Unsupported(f"tensor {name!r} is not known to this engine's {arch}")
        for name in self.names():
            if name in self.weights or name not in self.optional:
                self.get(name, name)
        for layer in range(self.hparams.n_layer):
            always = {None, *kinds(layer)}
            for name in self.names("blk.*."):
                kind = self.optional.get(f"blk.*.{name}")
                if f"blk.{layer}.{name}" in self.weights or kind in always:
                    self.in_layer(layer, name)

    def names(self, prefix: str = "") -> Iterator[str]:
        """Yield the names of tensors outside of layers, or of a layer's tensors without the
        prefix."""
        for name in self.shapes:
            if name.startswith("blk.*.") == bool(prefix):
                yield name.removeprefix(prefix)

    def get(self, name: str, general: str) -> Weight:
        shape = self.sizes.get(general)
        if shape is None:
            names = self.shapes[general]
            shape = self.sizes[general] = tuple(getattr(self.hparams, name) for name in names)
        return self.weights.tensor(name, shape)

    def __contains__(self, name: str) -> bool:
        return name in self.weights

    def __getitem__(self, name: str) -> Weight:
        return self.get(name, name)

    def in_layer(self, layer: int, name: str) -> Weight:
        return self.get(f"blk.{layer}.{name}", f"blk.*.{name}")
