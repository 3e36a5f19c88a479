"""Hugging Face's tokenizers: the original of byte-level BPE and WordPiece, from a GGUF file's data.

The library is a second opinion on llama.cpp, not an oracle. It takes only UTF-8, and adds no BOS or
EOS, because a GGUF file does not store the original's template.
"""

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from lockstep.engine.errors import EngineError, Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.adapters.parts import originals
from lockstep.harness.records import EngineInfo


class HfTokenizers(Adapter, name="tokenizers"):
    isolated = True

    def describe(self) -> EngineInfo:
        return EngineInfo(engine=self.name, version=self.library.__version__)

    @cached_property
    def library(self) -> Any:
        try:
            import tokenizers
        except ImportError as error:
            raise Unsupported(
                "tokenizers is not installed (pip install -e .[originals])"
            ) from error
        return tokenizers

    @cached_property
    def data(self) -> originals.Json:
        if self.model is None:
            raise EngineError("the question needs a model file, and none was given")
        with GgufFile.open(self.model) as file:
            return originals.plain(file.metadata)

    @cached_property
    def made(self) -> dict[bool, Any]:
        return {}

    def tokenize(
        self, texts: Sequence[bytes], *, add_special: bool = True, parse_special: bool = False
    ) -> list[list[int]]:
        if add_special:
            raise Unsupported("GGUF does not store the tokens that the original adds around a text")
        if parse_special not in self.made:
            described = originals.tokenizer_json(self.data, parse_special=parse_special)
            self.made[parse_special] = self.library.Tokenizer.from_str(json.dumps(described))
        tokenizer = self.made[parse_special]
        return [tokenizer.encode(readable(t), add_special_tokens=False).ids for t in texts]


def readable(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise EngineError(f"tokenizers takes UTF-8 only, got {text[:40]!r}") from error
