"""Our ops on llama.cpp's own graph, for any model that llama.cpp runs, without code for its
architecture.

A worker asks llama.cpp for the graphs of the batches, and our ops compute them anew from the
tokens. So a comparison with this engine reveals wrong ops and weights, but not a wrong graph,
because its graph is llama.cpp's.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch, steps_of
from lockstep.engine.choices import choices
from lockstep.engine.errors import EngineError, InvalidModel, NotInModel, Unsupported
from lockstep.engine.node import Node
from lockstep.engine.ops.build import Build
from lockstep.engine.quants.base import F32
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.asking.facts import decoder_start
from lockstep.harness.asking.worker import Crash, ReportedRefusal
from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.context.suite import no_answer
from lockstep.harness.graph.program import Graph, Place, PlannedNode, Program
from lockstep.harness.graph.record import record
from lockstep.harness.graph.replay import Replayed, replay
from lockstep.harness.graph.ways import Honest
from lockstep.harness.graph.wiring import sites_of
from lockstep.harness.judging.lanes import lanes_of
from lockstep.harness.processes.limits import MEMORY
from lockstep.harness.records import (
    Answered,
    EngineInfo,
    Evaluation,
    Outcome,
    Rejected,
    Request,
    Site,
    TensorRecord,
    Trace,
    Unanswerable,
)

SHOWS_GRAPHS = "llama.cpp"


class ReplayEngine(Reference, name="replay"):
    """An engine that replays graphs. It reads files, tokens and weights like the reference."""

    way = Honest(sizes=False)  # wrong engines compute in another way
    session: Session | None = None
    borrowed = False  # True: another object closes the session
    # the program and its outputs, without replaced values
    computed: tuple[Program, tuple[F32, ...]] | None = None

    def describe(self) -> EngineInfo:
        return EngineInfo(
            engine=self.name,
            version=super().describe().version,
            build="it replays llama.cpp's graph, so it cannot find a wrong graph",
            settings=self.settings,
            shows=(),  # nothing is shown in a run; single ops are all shown
            computes_nodes=True,
            shows_nodes=True,
        )

    def evaluate(self, request: Request) -> Evaluation:
        program = self.program_of(request.batches, embeddings=request.embeddings)
        sites, wanted = sites_of(program), set(request.only)
        records: list[TensorRecord] = []

        def see(graph: Graph, node: PlannedNode, value: NDArray[Any]) -> None:
            site = sites[graph.place(node)]
            if not wanted or site in wanted:
                records.append(TensorRecord(site=site, value=value.copy()))

        values = replacements_by_place(sites, request)
        if request.capture or values:
            logits = self.outputs_of(program, see if request.capture else None, values)
        else:
            logits = self.logits_of(program)
        trace = Trace(engine=self.name, records=tuple(records)) if request.capture else None
        return Evaluation(logits=logits, trace=trace)

    def embed(self, batches: Sequence[Batch]) -> tuple[F32, ...]:
        return self.outputs_of(self.program_of(batches, embeddings=True))

    def compute(self, node: Node) -> NDArray[Any]:
        """Compute a node as in a replay. Without a model there is no build of llama.cpp to copy, so
        the reference computes it."""
        if self.model is None:
            return super().compute(node)
        return self.way.compute(self.build, node)

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        """Return greedy ids, each the argmax of our logits. The run is recorded with llama.cpp's
        ids, because one recorded run is enough as long as our ids are the same."""
        if not prompt:
            raise EngineError("a prompt needs at least one token")
        guess: list[int] = self.ask("greedy", prompt, n)
        start = decoder_start(self.file, str(self.file.metadata["general.architecture"].data))
        while True:
            logits = self.logits_of(self.program_of(steps_of(prompt, guess, start)))
            ids = [int(np.argmax(rows[-1])) for rows in logits if len(rows)]
            wrong = next((i for i in range(n) if ids[i] != guess[i]), n)
            if wrong >= n - 1:  # ids are right up to the first wrong one
                return ids
            known = ids[: wrong + 1]
            more = [] if start is not None else self.ask("greedy", [*prompt, *known], n - wrong - 1)
            guess = [*known, *more, *guess[wrong + 1 + len(more) :]]

    def schedule(self, plan: Mapping[str, Any]) -> list[dict[str, Any]]:
        raise Unsupported(f"{self.name} does not run schedules")

    def close(self) -> None:
        if self.session is not None and not self.borrowed:
            self.session.close()
        self.session = self.computed = None
        super().close()

    def borrow(self, session: Session) -> None:
        """Use this open session. The session's build is requested at once, because the session
        answers no questions while it streams nodes."""
        self.session, self.borrowed = session, True
        _ = self.build

    # --- the graph ----------------------------------------------------------------------------

    def ask(self, question: str, *args: Any) -> Any:
        return value_of_outcome(self.open_session().ask(question, *args), question)

    def open_session(self) -> Session:
        if self.model is None:
            raise InvalidModel(f"{self.name} was opened without a model file")
        if self.session is None:
            self.session = Runner(memory_limit=MEMORY).open(SHOWS_GRAPHS, self.model, self.settings)
        return self.session

    def program_of(self, batches: Sequence[Batch], *, embeddings: bool = False) -> Program:
        found = record(self.open_session(), batches, embeddings=embeddings)
        if not isinstance(found, Program):
            value_of_outcome(found, "capture")
        assert isinstance(found, Program)
        return found

    @cached_property
    def build(self) -> Build:
        info: EngineInfo = self.ask("describe")
        return Build(
            lanes=lanes_of(info.build), n_threads=self.settings.n_threads, generic=info.generic
        )

    def logits_of(self, program: Program) -> tuple[F32, ...]:
        """Return the logits. The logits of the last program are kept, so that they are computed
        once."""
        if self.computed is None or self.computed[0] is not program:
            self.computed = program, self.outputs_of(program)
        return self.computed[1]

    def outputs_of(
        self,
        program: Program,
        trace: Any = None,
        values: Mapping[Place, NDArray[Any]] | None = None,
    ) -> tuple[F32, ...]:
        """Replay the program, and return the logits or embeddings of each batch.

        Raises Unsupported for a model without logits (unless the program is for embeddings), and
        for a node that cannot be computed.
        """
        if not program.has_result:
            last = program.graphs[-1].output.name
            raise NotInModel(f"the model has no logits: its graph ends in {last!r}")
        found: Replayed = replay(
            program, self.file, self.build, self.way, trace=trace, values=values
        )
        if found.missing:
            raise Unsupported(f"{self.name} does not compute {found.missing[0]}")
        return tuple(output for output in found.outputs if output is not None)


def value_of_outcome(outcome: Outcome, question: str) -> Any:
    match outcome:
        case Answered(value=value):
            return value
        case Unanswerable(message=message, of_model=of_model):
            raise NotInModel(message) if of_model else Unsupported(message)
        case Rejected(message=message):
            raise ReportedRefusal(message)
    # not a refusal, because the question was not considered
    raise Crash(no_answer(SHOWS_GRAPHS, question, outcome).summary.splitlines()[0])


def replacements_by_place(
    sites: Mapping[Place, Site], request: Request
) -> dict[Place, NDArray[Any]]:
    places = {site: place for place, site in sites.items()}
    for site in request.replace:
        if site not in places:
            known = (str(each) for each in places if each.step == site.step)
            raise Unsupported(
                f"llama.cpp's graph has no node {site} in step {site.step} "
                f"{choices(str(site), known)}"
            )
    return {places[site]: value for site, value in request.replace.items()}
