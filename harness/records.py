"""The values that the parts of the harness exchange. They have almost no behaviour and no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.harness.redaction import Redacted

# what llama.cpp stores a KV cache in
CACHE_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "IQ4_NL")


LORA, CONTROL_VECTOR = "lora", "control_vector"


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterFile:
    """A LoRA file or a control vector, with its scale."""

    kind: str  # LORA or CONTROL_VECTOR
    path: str
    scale: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The numeric settings of a run, which are part of a trace's identity."""

    name: str
    type_k: str = "F32"  # storage of the KV cache, one of CACHE_TYPES
    type_v: str = "F32"
    flash_attn: bool = False
    repack: bool = False  # llama.cpp's extra buffer types, which lay weights out anew
    n_threads: int = 1
    n_ctx: int = 512
    n_ubatch: int = 512
    generic: tuple[str, ...] = ()  # how the oracle rounds activations: see Build.generic
    adapters: tuple[AdapterFile, ...] = ()
    turned: bool = True  # heads in a quantised cache, by llama.cpp, where their size allows it

    def files_of(self, kind: str) -> list[tuple[Path, float]]:
        """Return the adapters of one kind, each with its scale."""
        return [(Path(each.path), each.scale) for each in self.adapters if each.kind == kind]


EXACT = Settings(name="exact")
DEFAULT = Settings(
    name="default", type_k="F16", type_v="F16", flash_attn=True, repack=True, n_threads=2
)
PRESETS = {"exact": EXACT, "default": DEFAULT}


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """A place in a run that both engines can name."""

    step: int  # index of the batch in the request: 0 is the prompt; 1, 2, ... are later decodes
    layer: int | None  # None outside the layers
    name: str  # llama.cpp's of a node, or one of harness.sites

    def __str__(self) -> str:
        return self.name if self.layer is None else f"{self.name}-{self.layer}"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TensorRecord:
    """One tensor of one engine's run."""

    site: Site
    value: NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Trace:
    """All tensors that an engine showed in one request, in execution order."""

    engine: str
    records: tuple[TensorRecord, ...]

    def values(self) -> dict[Site, NDArray[Any]]:
        return {record.site: record.value for record in self.records}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Request:
    """Batches to decode one after the other on an empty cache, and the values to show."""

    batches: tuple[Batch, ...]
    capture: bool = False  # record every site
    replace: Mapping[Site, NDArray[Any]] = field(default_factory=dict)  # values put in at sites
    only: tuple[Site, ...] = ()  # if any: record these alone
    embeddings: bool = False  # the outputs are embeddings: of a model without logits


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Evaluation:
    """The answer of an engine to a request."""

    logits: tuple[NDArray[np.float32], ...]  # per batch: (outputs, vocabulary)
    trace: Trace | None  # the values as computed, before any replacement


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SampleRequest:
    """Rows of logits for one chain of samplers, which processes them one after the other.

    `sampler` names a stage by its constructor in llama.h, without llama_sampler_init_. The other
    values are the constructor's parameters.
    """

    chain: tuple[Mapping[str, Any], ...]
    logits: NDArray[np.float32]  # (rows, vocabulary)
    accepted: tuple[tuple[int, ...], ...]  # tokens that the chain is told before each row
    draws: NDArray[np.float64]  # (rows, stages), 0 up to 1; NaN: the stage draws nothing
    prompt: tuple[int, ...] = ()  # came first, and is nothing that the chain was told


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SampleAnswer:
    """The candidates of each row that remain after each stage. For an engine that shows only the
    final list, the answer has one stage.

    All lists of the first row come first, then those of the next row.
    """

    sizes: NDArray[np.int32]  # (rows, stages) or (rows, 1)
    selected: NDArray[np.int32]  # the same shape: a token's id; -1: none
    ids: NDArray[np.int32]  # (candidates of all lists,)
    logits: NDArray[np.float32]  # (candidates of all lists,)
    p: NDArray[np.float32]  # (candidates of all lists,); NaN: not shown
    sorted: NDArray[np.bool_] | None = None  # what the engine says of each list, if it says it


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawRequest:
    """A request for one token, drawn by a chain that a server gets as its own parameters."""

    chain: tuple[Mapping[str, Any], ...]  # as in SampleRequest; `dist` is its end
    prompt: tuple[int, ...] | bytes
    seed: int
    n_listed: int = 0  # candidates behind the chain, to be shown
    more: int = 0  # tokens behind it


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawAnswer:
    """A drawn token: an id or a text; None if there is none, as at the end of a text."""

    token: int | bytes | None
    listed: tuple[tuple[int | bytes, float], ...] | None = None  # probabilities; None: not shown
    more: tuple[int, ...] = ()
    promised: bool = True  # False: a server of this kind need not act on that stage


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineInfo:
    """The engine that answered. These facts decide if a golden or a verdict still applies."""

    engine: str
    version: str
    build: str = ""  # compile-time CPU features and the like
    generic: tuple[str, ...] = ()  # how it rounds activations: see Build.generic
    settings: Settings | None = None
    shows: tuple[str, ...] | None = None  # names of sites in its traces; None: all
    computes_nodes: bool = False  # what `compute` answers is what its runs compute as well
    shows_nodes: bool = False  # its traces have llama.cpp's names of nodes
    fixed: tuple[str, ...] = ()  # names of sites whose value it cannot replace
    partial: bool = False  # of the sites that it shows any may be missing in a trace
    # the levels of harness.protocol that it says it has; None: it does not say, and is asked for
    # all but lists of candidates and text alone, which are for engines that show no logits
    levels: tuple[str, ...] | None = None
    utf8_only: bool = False  # no other text can be sent to it
    text_only: bool = False  # a prompt is a text: it takes no ids
    chat_only: bool = False  # that text is a message, with the model's chat template around it
    printed: str = ""  # on standard output before its first message, where messages are expected
    unmapped: tuple[str, ...] = ()  # tensors that it has, under names that the map does not know


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSummary:
    """A row of the tensor table as read by a parser."""

    name: str
    ne: tuple[int, ...]  # ggml's order, fastest first, without trailing ones
    type: str
    offset: int  # from the start of the data section
    n_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FileSummary:
    """A GGUF file as read by a parser. Values are JSON-like; NaN is the string "nan"."""

    version: int
    alignment: int
    data_offset: int
    metadata: Mapping[str, tuple[str, Any]]  # key -> (type such as "U32" or "ARR[STR]", value)
    tensors: tuple[TensorSummary, ...]
    unknown: tuple[str, ...] = ()  # of version, alignment, data_offset, tensors, types: not shown


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A wrong result to write into one node of an engine's graph."""

    step: int
    ubatch: int
    index: int
    kind: str  # scale (a row), swap (two elements), nudge (one element), stale (as it was before)
    draw: int  # decides the row and the element
    size: float = (
        0.01  # of a scaled row's change; of a nudge, as a share of the row's largest value
    )


ANY_KIND = -1  # of ops that are not one of several
KEPT, WEIGHTS, COMPUTE = 0, 1, 2  # memory that lives from graph to graph, of the model, of a graph


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Nodes:
    """Nodes of a graph in columns: a row for each node, then a row for each of its sources.

    `harness.shadow.nodes` makes Nodes from the rows. Sizes and strides are ggml's, in its order.
    """

    # what (`op`, the first parameter or ANY_KIND) is called: SILU, not UNARY
    ops: Mapping[tuple[int, int], str]
    types: tuple[str, ...]  # what `type` is called
    step: NDArray[np.int64]  # (rows,)
    ubatch: NDArray[np.int64]  # (rows,)
    index: NDArray[np.int64]  # (rows,): of the node in its graph
    place: NDArray[np.int64]  # (rows,): which source it is; -1: the node
    producer: NDArray[np.int64]  # (rows,): of a source, the node that computed it; -1: a leaf
    op: NDArray[np.int32]  # (rows,)
    type: NDArray[np.int32]  # (rows,)
    ne: NDArray[np.int64]  # (rows, 4)
    nb: NDArray[np.int64]  # (rows, 4)
    params: NDArray[np.int32]  # (rows, 16)
    name: NDArray[np.uint8]  # (rows, 64), ended by a zero
    weight: NDArray[np.uint8]  # (rows, 64): the file's tensor that a source lies in, if any
    offset: NDArray[np.int64]  # (rows,): in what it is a view of, bytes
    address: NDArray[np.int64]  # (rows,): of the tensor; what lives from graph to graph keeps its
    root: NDArray[np.int64]  # (rows,): address of whose memory it is a view of, its own if nobody's
    root_size: NDArray[np.int64]  # (rows,): bytes
    root_home: NDArray[np.int64]  # (rows,): of whose buffer that is: KEPT, WEIGHTS or COMPUTE
    root_name: NDArray[np.uint8]  # (rows, 64), ended by a zero
    at: NDArray[
        np.int64
    ]  # (rows,): where in `data` a contiguous copy lies; -1: nowhere, -2: none was made
    data: NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Captured:
    """A summary of a capture, in addition to the nodes themselves."""

    nodes: int  # that compute something
    views: int  # that compute nothing
    honest: NDArray[Any] | None = None  # what a fault replaced; None if it changed no bit
    # of each step: logits, or embeddings if these were asked for, in the order of the batch,
    # which is not that of ubatches; None: a model without logits
    outputs: tuple[NDArray[np.float32] | None, ...] = ()


# --- what asking an engine can end in -------------------------------------------------------
# Here an engine's words come in: none of them shows a secret.


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Answered:
    value: Any
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejected(Redacted):
    """The engine refused the input, with its reason."""

    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Unanswerable(Redacted):
    """The engine does not offer this question (`Unsupported` in a report)."""

    message: str
    of_model: bool = False  # nobody can answer: the model has no such thing
    declared: bool = False  # the engine said so when it was started, and was not asked


@dataclass(frozen=True, kw_only=True, slots=True)
class Crashed(Redacted):
    """The engine's process died: by a signal, an abort, or an unexpected exit."""

    message: str
    log: tuple[str, ...] = ()  # the last lines that it logged
    said: bool = False  # it said so itself: an exception, and no death
    signal: str = ""  # that killed it, such as SIGABRT


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedOut(Redacted):
    seconds: float
    log: tuple[str, ...] = ()
    note: str = ""  # what it did instead, if that is known
    tokens: int = field(default=0, compare=False)  # that the question was about, if that is known


@dataclass(frozen=True, kw_only=True, slots=True)
class Busy(Redacted):
    """The engine is running but did not answer. This is no evidence about the engine's results."""

    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Malformed(Redacted):
    """The answer does not have the form that its question demands (harness.answers). `said` is True
    if the answer is an error message."""

    message: str
    said: bool = False


Outcome = Answered | Rejected | Unanswerable | Crashed | TimedOut | Busy | Malformed


# --- what a run says while it goes on --------------------------------------------------------


class StageText(str):
    """A progress text that a pipe shows at once. `suite` is the suite that begins with it."""

    suite: str = ""

    @classmethod
    def of_suite(cls, name: str) -> "StageText":
        stage = cls(f"suite {name}")
        stage.suite = name
        return stage


# --- what a comparison can end in -----------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Mismatch:
    """The way in which two tensors differ, and the worst element if their shapes are equal."""

    kind: Literal["missing", "shape", "value"]
    index: tuple[int, ...] = ()
    expected: float = 0.0
    actual: float = 0.0
    allowed: float = 0.0
    mismatched: int = 0
    total: int = 0
    detail: str = ""


# not-compared: asked for and expected, but it could not be done; not-applicable: the model has no
# such thing, or the engine says that it does not offer it; malformed: an answer that is none to the
# question; internal: a defect of Lockstep
Status = Literal[
    "agreed",
    "diverged",
    "excused",
    "not-compared",
    "not-applicable",
    "crashed",
    "timed-out",
    "malformed",
    "internal",
]


ENGINE = "engine"  # in the detail of what an engine did not answer: its name
PART = "part"  # in the detail: which part of a suite was compared, as a test's name has it
REFUSED = "refused"  # the kind of a divergence in which nothing was compared
MADE_MODEL = "made_model"  # in the detail of what was seen on a model made from the user's
BOTH = "both"  # engines of a run


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The result of one comparison, as written to the report."""

    suite: str
    case: str
    status: Status
    summary: str  # one line for people
    detail: Mapping[str, Any] = field(default_factory=dict)  # JSON-like; depends on the suite
    key: str = ""  # (stage, symptom, op, type): divergences with the same key fold
    repro: str = ""  # the command that shows it again
    about: str = BOTH  # the engine's name if it says nothing of the other
