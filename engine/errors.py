"""Errors that the engine raises on purpose.

EngineError
├── MalformedFile     the bytes break the GGUF rules
├── InvalidModel      the file is legal GGUF, but not a model that makes sense
├── InvalidBatch      the batch breaks a rule that llama.cpp has for batches
├── InvalidGrammar    the text is not a grammar, never ends, or has too many readings
├── NoRoom            the batch is legal, but the memory has no room for it
└── Unsupported       the file is legal, but we do not implement a feature that it uses
    └── NotInModel    the model lacks the requested part, such as logits of a BERT
"""


class EngineError(Exception):
    """Base of every error that this package raises on purpose."""


class MalformedFile(EngineError):
    """The bytes break the GGUF rules.

    `kind` is one word for machines, `offset` the byte (from the start of the file) at which the
    rule was broken; the message is the sentence for people. `path` is "" for bytes in memory.
    """

    path = ""

    def __init__(self, kind: str, offset: int, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.offset = offset

    def __str__(self) -> str:
        return f"{self.args[0]} (at byte {self.offset})"


class InvalidModel(EngineError):
    """The file is legal GGUF, but a key or tensor that the model needs is missing or absurd."""


class InvalidBatch(EngineError):
    """Error: a batch that no memory accepts, or that contradicts the tokens already in memory."""


class InvalidGrammar(EngineError):
    """The text is not a grammar, has no end, or allows too many readings at once."""


class NoRoom(EngineError):
    """Error: the memory has no room for the batch. The memory is unchanged."""


class Unsupported(EngineError):
    """The file is legal, but the engine does not implement what it asks for."""


class NotInModel(Unsupported):
    """Error: the model lacks the requested part, so no engine can show that part."""
