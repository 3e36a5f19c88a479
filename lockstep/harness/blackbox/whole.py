"""The whole model in F32: as it is, and where activations are small.

What `check` asks of an engine without tensors, and `bisect --black-box` before it says that all
agrees: nothing is converted, so that a fault of the graph shows from some 1e-5 on; and the eps of
norms is seen where activations are small, and nowhere else.
"""

from collections.abc import Iterator
from dataclasses import replace

from lockstep.harness.blackbox.asking import SliceAnswer, SliceAsker
from lockstep.harness.blackbox.slices import small
from lockstep.harness.synth.twin import KEPT, write_twin

LARGEST_TWIN = 1 << 30  # bytes, which two engines hold at once
TWIN, SMALL = "the F32 twin", "the model made with small activations"


def is_small_enough(asker: SliceAsker) -> bool:
    """Of a larger model each layer's slice is asked alone."""
    return sum(4 * info.n_elements for info in asker.file.tensors.values()) <= LARGEST_TWIN


def is_quantised(asker: SliceAsker) -> bool:
    return any(info.type.name not in KEPT for info in asker.file.tensors.values())


def in_f32(asker: SliceAsker) -> Iterator[tuple[str, SliceAnswer]]:
    """What was asked, and what the engines came to, until they differ: what does so on the twin
    does wherever it is asked."""
    if not is_small_enough(asker):
        return
    if is_quantised(asker):
        first = twin(asker)
        yield TWIN, first
        if first.differs:
            return
    asker.progress("small activations")
    yield SMALL, asker.ask(small)


def twin(asker: SliceAsker) -> SliceAnswer:
    """Both engines on the whole model in F32."""
    asker.progress("the F32 twin")
    ours = asker.folder / "twin.gguf"
    write_twin(asker.plan.model, ours)
    theirs = ours
    if asker.subject_file is not asker.file:
        theirs = asker.folder / "subject.gguf"
        write_twin(asker.plan.subject_model, theirs)
    try:
        return asker.answered(replace(asker.plan, model=ours, subject_model=theirs))
    finally:
        for path in {ours, theirs}:
            path.unlink()
