"""How many tokens are generated of a model, where nobody says."""

from pathlib import Path

from lockstep.engine.errors import EngineError
from lockstep.engine.gguf.split_files import parts_of

STEPS = 64
LEAST = 16  # sizes of batches, and a text that two engines seldom share by chance
# bytes: an engine reads the whole file for each token, and this takes llama.cpp a second or some
READ = 16 << 30


def steps_for(model: Path) -> int:
    """Fewer of a large file; what many tokens show is asked of its first layer as well, as
    harness.blackbox.own_prompts says."""
    try:
        size = sum(part.stat().st_size for part in parts_of(model))
    except (EngineError, OSError):  # whoever opens it says what is wrong with it
        return STEPS
    return max(LEAST, min(STEPS, READ // max(1, size)))
