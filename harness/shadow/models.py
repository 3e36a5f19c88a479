"""Writes tiny models of any architecture: llama.cpp names the tensors, and Lockstep writes them."""

from collections.abc import Sequence
from pathlib import Path

from lockstep.engine.errors import EngineError
from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.records import EXACT, Answered
from lockstep.harness.synth.any_arch import (
    Variant,
    metadata_bytes,
    variant_named,
    with_vocabulary,
    write_variant,
)

NAMES_TENSORS = "llama.cpp"  # only this engine can name its tensors
# bytes of address space: it allocates every tensor in F32, but large ones are never written
ROOM = 64 << 30


def make_variant(
    variant: Variant,
    path: Path,
    *,
    seed: int = 0,
    quant: str = "F32",
    insist: bool = False,
    session: Session,
) -> list[str]:
    """Write the file, as `write_variant` does. Raises EngineError, with llama.cpp's answer, if
    llama.cpp names no tensors."""
    outcome = session.ask("name_tensors", metadata_bytes(variant))
    if not isinstance(outcome, Answered):
        raise EngineError(
            f"{NAMES_TENSORS} does not name the tensors of {variant.name!r}: {outcome}"
        )
    return write_variant(variant, outcome.value, path, seed=seed, quant=quant, insist=insist)


def make_variants(
    names: Sequence[str], folder: Path, *, seed: int = 0, quant: str = "F32", vocabulary: int = 0
) -> list[Path]:
    """Write the variants, and return their paths. The same engine process names the tensors of all
    variants, because starting a process takes longer than asking it. `vocabulary` is used as in
    `with_vocabulary`."""
    paths = [folder / f"{name}.gguf" for name in names]
    with open_for_variants() as session:
        for name, path in zip(names, paths, strict=True):
            variant = with_vocabulary(variant_named(name), vocabulary)
            make_variant(variant, path, seed=seed, quant=quant, session=session)
    return paths


def open_for_variants() -> Session:
    """Return a session that `make_variant` can use for any number of variants."""
    return Runner(memory_limit=ROOM).open(NAMES_TENSORS, None, EXACT)
