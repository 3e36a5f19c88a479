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
    embeddings = "embeddings"  # embeddings of the user's texts


class DifferenceKind(StrEnum):
    """The kind of a difference at one place of the file."""

    missing = "missing"  # only the original has it
    unexpected = "unexpected"  # nothing in the original corresponds to it
    value = "value"
    shape = "shape"
    # kinds of wrong values of a tensor
    holds = "holds"  # values of another tensor
    zeros = "zeros"
    order = "order"  # rows in the order of another rotation
    transposed = "transposed"
    offset = "offset"  # a norm with a wrong number added
    truncated = "truncated"  # truncated to the type instead of rounded
    narrowed = "narrowed"  # rounded to a coarser type in between
    shifted = "shifted"  # each row holds a neighbouring row
    halves = "halves"  # two merged matrices in the wrong order
    ordinary = "ordinary"  # the id of a special token names an ordinary token
    experts = "experts"  # experts in a wrong order
    rows = "rows"  # only a few rows are wrong
    scaled = "scaled"  # all weights have the same wrong factor
    blocks = "blocks"  # single blocks differ from the usual quantiser, which the other blocks match
    # differences between two runs with the same weights
    computed = "computed"  # a tensor is not what its inputs and the file's weights give
    outputs = "outputs"  # logits or embeddings differ, although no shown tensor is wrong by itself
    # wrong steps of the pipeline that made a user's embeddings
    embedding = "embedding"  # no pipeline explains this embedding
    prompt = "prompt"  # another prompt or none
    truncation = "truncation"  # the text was truncated at another length
    pooling = "pooling"
    normalisation = "normalisation"


class SkipReason(StrEnum):
    """The reason why a place was not compared."""

    no_row = "no-row"  # no table maps it to a GGUF file
    no_file = "no-file"  # the original lacks it
    no_library = "no-library"
    no_meaning = "no-meaning"  # the format has no key for it
    stored_type = "stored-type"  # the original's values have a type that Lockstep does not read
    no_environment = "no-environment"  # the environment that runs the original is missing
    quantised = "quantised"  # the file is quantised, so its run differs from the original's
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
    detail: dict[str, Any] = field(default_factory=dict)  # facts such as layer, row, holds


@dataclass(frozen=True, kw_only=True, slots=True)
class NotCompared:
    """A place of the checkpoint that was not compared."""

    part: OriginalPart
    reason: SkipReason
    place: str
    said: str = ""  # message of the engine that does not answer


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
    unlisted: int = 0  # further differences of kinds that are listed
    differences: list[OriginalDifference] = field(default_factory=list)
    skipped: list[NotCompared] = field(default_factory=list)
    # known differences of engines, which are no fault of the file
    known: list[OriginalDifference] = field(default_factory=list)
    loss: QuantisationLoss | None = None  # for a quantised file

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
