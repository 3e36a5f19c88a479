"""The declaration of an acid architecture: its sizes, tokens, tests and tensors."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

from lockstep.harness.acid.measurements.base import Measurement
from lockstep.harness.acid.shape import F64, Shape
from lockstep.harness.acid.vocabulary import AcidVocabulary, Keys
from lockstep.harness.acid.weights import AcidWeights

Tests = tuple[type[Measurement], ...]
PLAIN = {"F32": 0, "F16": 1, "BF16": 32}  # general.file_type for types without blocks


class AcidArchitecture(ABC):
    """An architecture of acid models. `name`: the value of `--arch`; `gguf`: the value of
    `general.architecture`."""

    name: ClassVar[str]
    gguf: ClassVar[str]
    shape: ClassVar[Shape]
    vocabulary: ClassVar[AcidVocabulary]
    prompted: ClassVar[Tests]  # tests that need the acid prompt; they come first
    usual: ClassVar[Tests]  # tests for any prompt
    # block types are tested in one architecture, because all architectures read them alike
    types: ClassVar[tuple[str, ...]] = tuple(PLAIN)
    foundations: ClassVar[frozenset[str]] = frozenset()  # names of tests on which all others depend

    def make_weights(self, shape: Shape, n_vocab: int) -> AcidWeights:
        return AcidWeights(shape, n_vocab)

    @abstractmethod
    def keys(self, s: Shape) -> Keys:
        """Return the metadata keys, without the architecture's name in front."""

    @abstractmethod
    def tensors(self, w: AcidWeights) -> Iterator[tuple[str, F64]]:
        """Yield the tensors in the order of the file, each with its slowest dimension first.
        Vectors are always F32."""

    def metadata(self, s: Shape) -> Keys:
        found: dict[str, tuple[str, Any]] = {}
        for key, value in self.keys(s).items():
            found[f"{self.gguf}.{key}"] = value
        return found
