"""A GGUF reader that fails at one number. Initially, only the fault `every-type` contains it."""

from lockstep.engine.gguf.file import GgufFile as Right

NUMBER = 0x81818181
WORDS = "a number that it cannot take"


class GgufFile:
    """A reader with a fault that guided fuzzing reaches."""

    @classmethod
    def from_bytes(cls, data: bytes) -> Right:
        file = Right.from_bytes(data)
        for value in file.metadata.values():
            if isinstance(value.data, int) and value.data == NUMBER:
                raise KeyError(WORDS)
        return file
