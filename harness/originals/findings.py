"""Results of a comparison with the original: differences and gaps."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class OriginalPart(StrEnum):
    """The parts of a comparison, in the order in which they run."""

    hyperparameters = "hyperparameters"
    tensors = "tensors"
    tokenizer = "tokenizer"
    run = "run"
    embeddings = "embeddings"  # of a user's texts


class DifferenceKind(StrEnum):
    """The kind of a difference at one place of the file."""

    missing = "missing"  # the original has it
    unexpected = "unexpected"  # the original has nothing that it could be made from
    value = "value"
    shape = "shape"
    # tensors: what their values are instead
    holds = "holds"  # those of another tensor
    zeros = "zeros"
    order = "order"  # rows in the order of another rotation
    transposed = "transposed"
    offset = "offset"  # a norm with another number added
    truncated = "truncated"  # cut to the type, not rounded
    narrowed = "narrowed"  # rounded to a coarser type on the way
    shifted = "shifted"  # each row holds a neighbour's
    halves = "halves"  # two merged matrices the other way round
    experts = "experts"  # experts in another order
    rows = "rows"  # a few rows alone
    scaled = "scaled"  # all weights by the same factor
    blocks = "blocks"  # single blocks of a matrix that has all others from the usual quantiser
    # the run: what is computed from the same weights
    computed = "computed"  # a tensor is not what its inputs and the file's weights come to
    outputs = "outputs"  # logits or embeddings, though no tensor that is shown is wrong by itself
    # embeddings of a user's texts: what was done otherwise
    embedding = "embedding"  # no pipeline that was tried gives this embedding
    prompt = "prompt"  # none was put before the text, or another
    truncation = "truncation"  # the text was not cut where the original cuts it
    pooling = "pooling"
    normalisation = "normalisation"


class SkipReason(StrEnum):
    """The reason why a place was not compared."""

    no_row = "no-row"  # no table says what it becomes in a GGUF file
    no_file = "no-file"  # the original lacks it
    no_library = "no-library"
    no_meaning = "no-meaning"  # the format has no key for it
    stored_type = "stored-type"  # the original's numbers are of a type that is not read
    no_environment = "no-environment"  # that the original runs in
    quantised = "quantised"  # the file, so that a run differs by what its weights have lost
    no_answer = "no-answer"  # one of the two does not run

    @property
    def is_expected(self) -> bool:
        """Return True for a reason that makes the comparison impossible here. Such a reason does
        not make the result incomplete."""
        return self in (SkipReason.no_environment, SkipReason.quantised)


@dataclass(frozen=True, kw_only=True, slots=True)
class OriginalDifference:
    """A place where the file differs from the converted checkpoint."""

    part: OriginalPart
    kind: DifferenceKind
    place: str  # a key, a tensor, or `token ID`
    expected: Any = None  # JSON-like
    got: Any = None
    detail: dict[str, Any] = field(default_factory=dict)  # layer, row, holds, ...


@dataclass(frozen=True, kw_only=True, slots=True)
class NotCompared:
    """A place of the checkpoint that was not compared."""

    part: OriginalPart
    reason: SkipReason
    place: str
    said: str = ""  # by the one that does not answer


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantisationLoss:
    """The loss of a quantised file. Each value is a mean over positions; its error is half of the
    95 % confidence interval.

    kl: Kullback-Leibler divergence in nats. same_top: share of positions with the same most likely
    token.
    """

    positions: int
    kl: float
    kl_error: float
    same_top: float
    same_top_error: float


@dataclass(kw_only=True, slots=True)
class PartResult:
    """The result of one part. `compared` counts keys, tensors or entries."""

    part: OriginalPart
    compared: int = 0
    differences: list[OriginalDifference] = field(default_factory=list)
    skipped: list[NotCompared] = field(default_factory=list)
    known: list[OriginalDifference] = field(default_factory=list)  # of engines: no fault of a file
    loss: QuantisationLoss | None = None  # of a quantised file

    def add(self, kind: DifferenceKind, place: str, expected: Any, got: Any, **detail: Any) -> None:
        """Add a difference."""
        self.differences.append(
            OriginalDifference(
                part=self.part, kind=kind, place=place, expected=expected, got=got, detail=detail
            )
        )

    def skip(self, reason: SkipReason, place: str, said: str = "") -> None:
        """Add a place that was not compared."""
        self.skipped.append(NotCompared(part=self.part, reason=reason, place=place, said=said))
