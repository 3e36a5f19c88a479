"""Search for the name of a faulty part, by making parts neutral and comparing the engines again.

The slice has only one working half-layer, so that a fault in the other half-layer cannot interfere.
The first questions name a part as soon as the engines agree. If they never agree, the products of
the half-layer are made so simple that none can be wrong. If the engines still differ, the fault is
in the operations on these products. If they agree, one of the matrices is wrong. Parts that no
question can distinguish have one common name.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from lockstep.harness.blackbox.asking import SliceAnswer
from lockstep.harness.blackbox.parts import (
    ONE_TOKEN,
    Maker,
    experts_alike,
    experts_alike_and_loud,
    head_apart,
    in_one_batch,
    larger,
    no_bias,
    no_positions,
    no_rotation,
    no_scores,
    no_sinks,
    norms_do_nothing,
    norms_of_one_bit,
    norms_of_one_number,
    norms_of_ones,
    nothing_but_the_head,
    nothing_to_norm,
    one_bias,
    one_row,
    plain,
    plain_head,
    position_0,
    quiet_logits,
    shared_muted,
    simple_rows,
    tied_head,
)
from lockstep.harness.suites.parts.lists import LOGARITHMS

SAME, STILL = "embeddings that are all the same", "embeddings that a norm does not change"
Table = tuple[tuple[Maker, str, str], ...]
BIAS = "bias"


@dataclass(frozen=True, kw_only=True)
class Part:
    """A named part. name: a name from a fixed list; words: the evidence; left: True if the fault
    remains when all other parts are made simple."""

    name: str
    words: str
    asked_as: str = ""  # name in the table of questions
    left: bool = False


FAILS = Part(name="it fails on a model of one layer", words="the engine gives no logits for it")
FAILS_MUTED = replace(FAILS, name="it fails on the model whose other layers add nothing")


@dataclass(kw_only=True)
class Asked:
    """The questions so far, with their answers by name. No question is asked twice."""

    ask: Callable[[Maker], SliceAnswer | None]
    found: dict[str, SliceAnswer] = field(default_factory=dict)

    def answer(self, maker: Maker, words: str) -> SliceAnswer | None:
        """Return the answer for the model with the part made neutral; None if the model lacks the
        part."""
        if words not in self.found:
            answer = self.ask(maker)
            if answer is None:
                return None
            self.found[words] = answer
        return self.found[words]

    def is_open(self, maker: Maker, words: str) -> bool:
        """Return True if the answer is unknown, because an engine refuses such a model or fails on
        it."""
        answer = self.answer(maker, words)
        return answer is not None and answer.status not in ("agreed", "diverged")

    def agrees(self, maker: Maker, words: str) -> bool:
        answer = self.answer(maker, words)
        return answer is not None and answer.agrees

    def differs(self, maker: Maker, words: str) -> bool:
        """Return True if the answer diverges. An engine's failure on such a model is not a
        difference."""
        answer = self.answer(maker, words)
        return answer is not None and answer.status == "diverged"

    def first_of(self, table: Table, likely: Collection[str] = ()) -> Part | None:
        """Return the first part that explains the difference. likely: names of parts that are wrong
        in other layers. These parts are tried first, because engines make the same mistake in every
        layer."""
        for maker, words, name in sorted(table, key=lambda question: question[2] not in likely):
            if self.agrees(maker, words):
                return part_that_agrees(name, words)
        return None

    def rest(self, name: str) -> Part:
        differ = ", ".join(words for words, answer in self.found.items() if answer.differs)
        return Part(name=name, words=f"the engines also differ with {differ}" if differ else "")


def part_that_agrees(name: str, words: str) -> Part:
    return Part(name=name, words=f"the engines agree with {words}", asked_as=name)


def part_that_differs(name: str, words: str) -> Part:
    return Part(name=name, words=f"the engines differ with {words}", asked_as=name, left=True)


# --- attention ----------------------------------------------------------------------------------

SCORES = "scores: queries, keys as they are kept, rotation or scale"
MASK = "mask, softmax or cache"
LOST = "mask, softmax or cache, or heads that are lost"
ROTATION = "rotation"
OF_PLACES = (ROTATION, SCORES, MASK)  # parts that depend on earlier tokens
ONE_BATCH = "all tokens in one batch"
# in the order of the questions: the part at fault if the engines agree
OF_ATTENTION: Table = (
    (no_bias, "biases of zero", BIAS),
    (larger, "a smaller eps", "eps"),
    (norms_of_ones, "norms with weights of one", "weights of norms"),
    (norms_of_one_number, "norms with weights and biases of one", "weights of norms"),
    (norms_do_nothing, STILL, "attention norm"),
    (no_rotation, "positions that rotate nothing", ROTATION),
    (no_scores, "queries of zero", SCORES),
    (no_sinks, "sinks without weight", "sinks"),
    (position_0, ONE_TOKEN, MASK),
)
VALUES, ENDS = ("attn_v", "attn_qkv"), ("attn_output", "attn_out")
OF_BIASES = ("attn_q", "attn_k", *VALUES, *ENDS, "ffn_gate_inp", "ssm_dt", "ssm_conv1d")
BOTH = ("attn_k", *VALUES)  # equal in both, because an engine may confuse keys and values

ITS_ENDS: Table = (
    (plain(*VALUES), "values that read one input each", "matrix of values"),
    (plain(*ENDS), "an output matrix that shows heads", "output matrix"),
    (plain(*BOTH), "keys and values that read one input each", "matrices of keys or values"),
)


def part_of_attention(
    asked: Asked, likely: Collection[str], heads: Callable[[], Part | None]
) -> Part:
    if MASK in likely:  # a single token has no scores either, so these are tested first
        likely = {*likely, SCORES}
    if part := asked.first_of(OF_ATTENTION, likely):
        part = with_one_bias(asked, part, likely)
        return with_batches(asked, part) if part.name in OF_PLACES else part
    words = "values that are all equal"
    if asked.differs(plain(*BOTH, *ENDS, period=1), words):
        return heads() or part_that_differs(LOST, words)
    words = "values that read one input each, shown unchanged"
    if asked.differs(plain(*BOTH, *ENDS), words):
        return heads() or part_that_differs(
            "values as they are kept, or how heads are put together", words
        )
    return asked.first_of(ITS_ENDS) or heads() or asked.rest("its norm or matrices")


def with_batches(asked: Asked, part: Part) -> Part:
    """Add a note to the part if the engines agree with all tokens in one batch. The fault is then
    in batches after the first."""
    if not asked.agrees(in_one_batch, ONE_BATCH):
        return part
    text = "and with all tokens in one batch: only batches after the first are wrong"
    return replace(part, words=f"{part.words}, {text}")


def with_one_bias(asked: Asked, part: Part, likely: Collection[str]) -> Part:
    """Add the tensor's name to a bias part, with one question for each bias in the first faulty
    layer. Add no name if two biases explain the fault."""
    if part.name != BIAS or BIAS in likely:
        return part
    whose = {f"{tensor}.bias": one_bias(tensor) for tensor in (*OF_BIASES, *UP, *GATE, *DOWN)}
    alone = [name for name, maker in whose.items() if asked.agrees(maker, f"{name} of zero")]
    if len(alone) != 1:
        return part
    return replace(part, words=f"{part.words}, and with only {alone[0]} zero")


# --- FFN ----------------------------------------------------------------------------------------

ROUTER = "router: which experts are chosen or read, or their shares"
WEIGHED = "router: sum of the expert weights"
OF_FFN: Table = (
    (no_bias, "biases of zero", BIAS),
    (larger, "a smaller eps", "eps"),
    (norms_of_ones, "norms with weights of one", "weights of norms"),
    (norms_of_one_number, "norms with weights and biases of one", "weights of norms"),
    (norms_do_nothing, STILL, "FFN norm"),
    (experts_alike, "experts that are all equal", ROUTER),
    (experts_alike_and_loud, "equal experts so large that nothing else matters", WEIGHED),
    (shared_muted, "shared experts that add nothing", "shared experts"),
)
UP, GATE = ("ffn_up", "ffn_up_exps"), ("ffn_gate", "ffn_gate_exps")
DOWN = ("ffn_down", "ffn_down_exps")
ITS_MATRICES: Table = (
    (plain(*UP), "an up branch that reads one input", "up matrix"),
    (plain(*GATE), "a gate that reads one input", "gate matrix"),
    (plain(*DOWN), "a down matrix that shows the activation", "down matrix"),
)


def part_of_ffn(asked: Asked, likely: Collection[str]) -> Part:
    if part := asked.first_of(
        (*OF_FFN, *(row for row in ITS_MATRICES if row[2] in likely)), likely
    ):
        return with_one_bias(asked, part, likely)
    words = "matrices whose rows read one input each"
    if asked.differs(plain(*UP, *GATE, *DOWN, few=True), words):
        if asked.agrees(
            plain(*UP, *GATE, *DOWN, alike=True, few=True),
            "the same matrices, with gate and up equal",
        ):
            return part_that_differs("activation, or gate and up that are exchanged", words)
        return part_that_differs("activation", words)
    return asked.first_of(ITS_MATRICES) or half_of_the_activation(
        asked.rest("its norm or matrices")
    )


def half_of_the_activation(part: Part) -> Part:
    """Note that only the first half of the activation was compared. The question reads only the
    first half, so that it does not depend on whether the down matrix loses the end of a row.
    Without this note, the report would blame a norm or a matrix for a gate that overwrites the
    other factor."""
    text = "only the first half of the activation was compared"
    return replace(part, words=f"{part.words}; {text}" if part.words else text)


# --- outside the layers -------------------------------------------------------------------------

OF_LOGITS = "what is made of logits: a cap"
OF_LOGARITHMS = "what is made of logits: their logarithms"
# gemma2's head is always the embedding table, so its rows cannot be changed alone
BOTH_ENDS = "embedding, output norm, output matrix, or what is made of logits"
ONE_ROW = "kernels for a single row, as for one token at a time"
SOME = "embedding of some tokens, or logits of others"
FEW_ROWS = ", or kernels for batches as small as in this run"
TIED, APART = "output matrix, which is the table of embeddings", "a head with its own matrix"
ROUNDED = "rounding of what the output norm gives and the output matrix reads"
OF_VALUES: Table = (
    (simple_rows, "embeddings that are powers of two", "embedding"),
    (norms_of_ones, "norms with weights of one", "output norm: its weights"),
    (norms_of_one_number, "norms with weights and biases of one", "output norm: its weights"),
    (norms_of_one_bit, "norms that give powers of two", ROUNDED),
    (nothing_to_norm, STILL, "output norm"),
)
OF_THE_HEAD: Table = (
    (plain_head, "a head that shows the norm's results", "output matrix"),
    (tied_head, "the embeddings as the head", "output matrix"),
)


def part_outside(asked: Asked, *, of_logits: bool) -> Part:
    """Return the faulty part outside the layers, such as some rows of the embeddings, the output
    norm, or the output matrix."""
    # first, because with a separate head the engines would agree here too
    if asked.agrees(head_apart, APART):
        return part_that_agrees(TIED, APART)
    if asked.agrees(no_positions, "learned positions of zero"):
        return part_that_agrees("embedding: learned positions", "learned positions of zero")
    # Before the single token, which may be within the limit when all tokens together are just
    # beyond it. Also before embeddings of size one, which hide an error of eps too.
    if asked.agrees(larger, "a smaller eps"):
        return part_that_agrees("eps", "a smaller eps")
    if asked.agrees(position_0, ONE_TOKEN):
        if asked.agrees(nothing_to_norm, STILL):
            return part_that_agrees("output norm", f"{ONE_TOKEN}, and with {STILL}")
        # this run has other tokens, so it does not clear the rows of the usual tokens
        if asked.agrees(in_one_batch, ONE_BATCH):
            return part_that_agrees(SOME + FEW_ROWS, f"{ONE_TOKEN}, and with {ONE_BATCH}")
        return part_that_agrees(SOME, ONE_TOKEN)
    if asked.differs(position_0, ONE_TOKEN) and asked.agrees(in_one_batch, ONE_BATCH):
        return part_that_agrees(ONE_ROW, f"{ONE_BATCH}, and differ with the first alone")
    words = "logits a millionth as large"
    if of_logits and asked.agrees(quiet_logits, words):
        return part_that_agrees(OF_LOGITS, words)
    if asked.agrees(one_row, SAME):
        return part_that_agrees("embedding", SAME)
    return asked.first_of(OF_VALUES) or part_of_the_head(asked)


def of_another_base(answer: SliceAnswer) -> Part | None:
    """Return the logarithms as the wrong part, if a different base explains all values of the
    lists. Probe models for single parts then show nothing, because equal values hide the base."""
    words = answer.extent.get(LOGARITHMS)
    return Part(name=OF_LOGARITHMS, words=words) if words else None


def part_of_the_head(asked: Asked) -> Part:
    words = "the same row for all tokens, and no norm"
    in_the_head = asked.differs(nothing_but_the_head, words)
    if part := asked.first_of(OF_THE_HEAD):
        return part
    if asked.is_open(nothing_but_the_head, words):
        return asked.rest(BOTH_ENDS)
    if not in_the_head:
        return part_that_differs("embedding", f"{STILL}, and agree with {words}")
    return part_that_differs("output matrix, or what is made of logits", words)
