"""Google's sentencepiece: the original of the "llama" and "t5" tokenizers, from a GGUF file's data.

The library is a second opinion on llama.cpp, not an oracle. It adds no BOS or EOS, and never reads
a control token from a text.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from lockstep.engine.errors import EngineError, Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.adapters.parts import originals
from lockstep.harness.records import EngineInfo


class SentencePiece(Adapter, name="sentencepiece"):
    isolated = True

    def describe(self) -> EngineInfo:
        return EngineInfo(engine=self.name, version=self.library.__version__)

    @cached_property
    def library(self) -> Any:
        try:
            import sentencepiece
        except ImportError as error:
            raise Unsupported(
                "sentencepiece is not installed (pip install -e .[originals])"
            ) from error
        return sentencepiece

    @cached_property
    def processor(self) -> Any:
        if self.model is None:
            raise EngineError("the question needs a model file, and none was given")
        with GgufFile.open(self.model) as file:
            described = originals.sentencepiece_model(originals.plain(file.metadata))
        processor = self.library.SentencePieceProcessor()
        processor.LoadFromSerializedProto(described)
        return processor

    def tokenize(
        self, texts: Sequence[bytes], *, add_special: bool = True, parse_special: bool = False
    ) -> list[list[int]]:
        if add_special or parse_special:
            raise Unsupported("sentencepiece has no special tokens around a text or in it")
        return [list(self.processor.encode(text)) for text in texts]
