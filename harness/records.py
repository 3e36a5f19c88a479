"""The values that the parts of the harness exchange. They have almost no behaviour and no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.harness.redaction import Redacted

# types in which llama.cpp stores a KV cache
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
    type_k: str = "F32"  # type of the KV cache, one of CACHE_TYPES
    type_v: str = "F32"
    flash_attn: bool = False
    repack: bool = False  # llama.cpp's extra buffer types, which store weights in another layout
    n_threads: int = 1
    n_ctx: int = 512
    n_ubatch: int = 512
    generic: tuple[str, ...] = ()  # the oracle's rounding of activations: see Build.generic
    adapters: tuple[AdapterFile, ...] = ()
    turned: bool = True  # llama.cpp rotates heads in a quantised cache if their size allows it

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
    name: str  # llama.cpp's name of a node, or one of harness.sites

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
    replace: Mapping[Site, NDArray[Any]] = field(default_factory=dict)  # values to put in at sites
    only: tuple[Site, ...] = ()  # if not empty: only these sites are recorded
    embeddings: bool = False  # the outputs are embeddings, because the model has no logits


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Evaluation:
    """The answer of an engine to a request."""

    logits: tuple[NDArray[np.float32], ...]  # per batch: (outputs, vocabulary)
    trace: Trace | None  # computed values, before any replacement


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SampleRequest:
    """Rows of logits for one chain of samplers, which processes them one after the other.

    `sampler` names a stage by its constructor in llama.h, without llama_sampler_init_. The other
    values are the constructor's parameters.
    """

    chain: tuple[Mapping[str, Any], ...]
    logits: NDArray[np.float32]  # (rows, vocabulary)
    accepted: tuple[tuple[int, ...], ...]  # tokens that the chain accepts before each row
    draws: NDArray[np.float64]  # (rows, stages), from 0 to below 1; NaN: the stage draws nothing
    prompt: tuple[int, ...] = ()  # tokens before the first row, which the chain does not accept


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SampleAnswer:
    """The candidates of each row that remain after each stage. For an engine that shows only the
    final list, the answer has one stage.

    All lists of the first row come first, then those of the next row.
    """

    sizes: NDArray[np.int32]  # (rows, stages) or (rows, 1)
    selected: NDArray[np.int32]  # the same shape: the id of a token; -1: no token
    ids: NDArray[np.int32]  # (candidates of all lists,)
    logits: NDArray[np.float32]  # (candidates of all lists,)
    p: NDArray[np.float32]  # (candidates of all lists,); NaN: not shown
    sorted: NDArray[np.bool_] | None = None  # the engine's flag of each list


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawRequest:
    """A request for one token, drawn by a chain that a server gets as its own parameters."""

    chain: tuple[Mapping[str, Any], ...]  # see SampleRequest; `dist` is the last stage
    prompt: tuple[int, ...] | bytes
    seed: int
    n_listed: int = 0  # number of candidates after the chain that the answer should list
    more: int = 0  # number of tokens to sample after the first


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawAnswer:
    """A drawn token: an id or a text; None if there is none, as at the end of a text."""

    token: int | bytes | None
    listed: tuple[tuple[int | bytes, float], ...] | None = None  # probabilities; None: not shown
    more: tuple[int, ...] = ()
    promised: bool = True  # False: the server need not apply the stage


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineInfo:
    """The engine that answered. These facts decide if a golden or a verdict still applies."""

    engine: str
    version: str
    build: str = ""  # compile-time CPU features and similar facts
    generic: tuple[str, ...] = ()  # the engine's rounding of activations: see Build.generic
    settings: Settings | None = None
    shows: tuple[str, ...] | None = None  # names of the sites in its traces; None: all
    computes_nodes: bool = False  # `compute` uses the same code as the engine's runs
    shows_nodes: bool = False  # its traces use llama.cpp's names of nodes
    fixed: tuple[str, ...] = ()  # names of sites whose value cannot be replaced
    partial: bool = False  # a trace may lack any of the sites in `shows`
    # the levels of harness.protocol that the engine declares. None: it declares none, and is asked
    # for all levels except lists of candidates and text, which are for engines without logits
    levels: tuple[str, ...] | None = None
    utf8_only: bool = False  # only valid UTF-8 can be sent to the engine
    text_only: bool = False  # a prompt is a text, because the engine accepts no ids
    chat_only: bool = False  # the engine puts prompts into the model's chat template
    printed: str = ""  # standard output before the first message
    unmapped: tuple[str, ...] = ()  # tensors under names that the map does not contain


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSummary:
    """A row of the tensor table as read by a parser."""

    name: str
    ne: tuple[int, ...]  # ggml's order: the fastest dimension first, without trailing ones
    type: str
    offset: int  # bytes from the start of the data section
    n_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FileSummary:
    """A GGUF file as read by a parser. Values are JSON-like; NaN is the string "nan"."""

    version: int
    alignment: int
    data_offset: int
    metadata: Mapping[str, tuple[str, Any]]  # key -> (type such as "U32" or "ARR[STR]", value)
    tensors: tuple[TensorSummary, ...]
    # fields that the engine does not show, of version, alignment, data_offset, tensors, types
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A wrong result to write into one node of an engine's graph."""

    step: int
    ubatch: int
    index: int
    kind: str  # scale (a row), swap (two elements), nudge (one), stale (an earlier value)
    draw: int  # random number that selects the row and the element
    size: float = 0.01  # relative change of a scaled row; for nudge, share of its largest value


ANY_KIND = -1  # for ops that have no kinds
KEPT, WEIGHTS, COMPUTE = 0, 1, 2  # memory kept between graphs, of the model, of a graph


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Nodes:
    """Nodes of a graph in columns: a row for each node, then a row for each of its sources.

    `harness.shadow.nodes` makes Nodes from the rows. Sizes and strides are ggml's, in its order.
    """

    # names of ops by (`op`, first parameter or ANY_KIND), such as SILU instead of UNARY
    ops: Mapping[tuple[int, int], str]
    types: tuple[str, ...]  # names of the values of `type`
    step: NDArray[np.int64]  # (rows,)
    ubatch: NDArray[np.int64]  # (rows,)
    index: NDArray[np.int64]  # (rows,): index of the node in its graph
    place: NDArray[np.int64]  # (rows,): number of the source; -1: the node itself
    producer: NDArray[np.int64]  # (rows,): for a source, the node that computed it; -1: a leaf
    op: NDArray[np.int32]  # (rows,)
    type: NDArray[np.int32]  # (rows,)
    ne: NDArray[np.int64]  # (rows, 4)
    nb: NDArray[np.int64]  # (rows, 4)
    params: NDArray[np.int32]  # (rows, 16)
    name: NDArray[np.uint8]  # (rows, 64), zero-terminated
    weight: NDArray[np.uint8]  # (rows, 64): the tensor of the file in which a source lies, if any
    offset: NDArray[np.int64]  # (rows,): byte offset in the tensor of which it is a view
    address: NDArray[np.int64]  # (rows,): of the tensor; kept memory keeps its address
    root: NDArray[np.int64]  # (rows,): address of the viewed tensor, or its own
    root_size: NDArray[np.int64]  # (rows,): bytes
    root_home: NDArray[np.int64]  # (rows,): kind of buffer of that memory: KEPT, WEIGHTS or COMPUTE
    root_name: NDArray[np.uint8]  # (rows, 64), zero-terminated
    at: NDArray[
        np.int64
    ]  # (rows,): offset of a contiguous copy in `data`; -1: no bytes, -2: not copied
    data: NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Captured:
    """A summary of a capture, in addition to the nodes themselves."""

    nodes: int  # nodes that compute something
    views: int  # nodes that compute nothing
    honest: NDArray[Any] | None = None  # the values that a fault replaced; None if no bit changed
    # for each step, the logits, or the embeddings if these were requested, in the order of the
    # batch and not of ubatches; None: a model without logits
    outputs: tuple[NDArray[np.float32] | None, ...] = ()


# --- outcomes of a question -----------------------------------------------------------------
# Text of an engine enters here. It must not contain secrets.


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
    of_model: bool = False  # the model lacks this, so no engine can answer
    declared: bool = False  # the engine declared this at its start, and was not asked


@dataclass(frozen=True, kw_only=True, slots=True)
class Crashed(Redacted):
    """The engine's process died: by a signal, an abort, or an unexpected exit."""

    message: str
    log: tuple[str, ...] = ()  # the last lines that it logged
    said: bool = False  # the engine reported the error itself, by an exception, and did not die
    signal: str = ""  # the signal that killed the engine, such as SIGABRT


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedOut(Redacted):
    seconds: float
    log: tuple[str, ...] = ()
    note: str = ""  # the engine's actual behaviour, if known
    tokens: int = field(default=0, compare=False)  # number of tokens in the question, if known


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


# --- messages of a run -----------------------------------------------------------------------


class StageText(str):
    """A progress text that a pipe shows at once. `suite` is the suite that begins with it."""

    suite: str = ""

    @classmethod
    def of_suite(cls, name: str) -> "StageText":
        stage = cls(f"suite {name}")
        stage.suite = name
        return stage


# --- outcomes of a comparison ---------------------------------------------------------------


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


# not-compared: requested and expected, but impossible. not-applicable: the model lacks it, or the
# engine declares that it does not offer it. malformed: the answer does not fit the question.
# internal: a defect of Lockstep.
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


ENGINE = "engine"  # key in `detail`: the name of the engine that did not answer
PART = "part"  # key in `detail`: the part of a suite that was compared, as a test is named
REFUSED = "refused"  # kind of a divergence in which nothing was compared
MADE_MODEL = "made_model"  # key in `detail`: the verdict is about a model made from the user's
BOTH = "both"  # about both engines of a run


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The result of one comparison, as written to the report."""

    suite: str
    case: str
    status: Status
    summary: str  # one line for people
    detail: Mapping[str, Any] = field(default_factory=dict)  # JSON-like; depends on the suite
    key: str = ""  # (stage, symptom, op, type): divergences with the same key are reported once
    repro: str = ""  # the command that reproduces the verdict
    about: str = BOTH  # the name of the engine if the verdict is about only one
