"""Models for `--arch`: any architecture, written on demand."""

from pathlib import Path

ALL = "all"
VARIANT_PREFIX = "synth:"
VOCABULARY = 384  # number of tokens, as in `lockstep synth`


def variant_files(arch: str, folder: str, seed: int) -> list[tuple[str, Path]]:
    """Return the name for the report and the path of each model."""
    from lockstep.harness.shadow.models import make_variants
    from lockstep.harness.synth.any_arch import variant_named, variants

    names = list(variants()) if arch == ALL else [variant_named(arch).name]
    paths = make_variants(names, Path(folder), seed=seed, vocabulary=VOCABULARY)
    return [(VARIANT_PREFIX + name, path) for name, path in zip(names, paths, strict=True)]
