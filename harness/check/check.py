"""`lockstep check`: every suite that applies, on one model and one preset."""

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from lockstep.engine.batch import Batch
from lockstep.engine.errors import EngineError, Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.ops.build import Build
from lockstep.engine.registry import import_members
from lockstep.engine.tokenizers.base import tokenizer_of
from lockstep.harness.adapters import split_version
from lockstep.harness.adapters.llama_cpp.identity import named_folder
from lockstep.harness.adapters.parts.users import is_users
from lockstep.harness.asking.environments import provide
from lockstep.harness.asking.facts import ModelFacts, facts_of_model, too_long
from lockstep.harness.asking.session import LocalSession
from lockstep.harness.check.adapters import check_adapters, check_used
from lockstep.harness.check.caches import check_heads, why_not_followed
from lockstep.harness.check.oracle_form import OracleForm
from lockstep.harness.context.runner import Runner, Session, is_outside
from lockstep.harness.context.suite import (
    NOT_OFFERED,
    STEPS_TRACED,
    Context,
    NoAnswer,
    Suite,
    line_that_says_why,
    no_answer,
    patient,
)
from lockstep.harness.dumps.dump import (
    Dump,
    DumpSession,
    check_map,
    check_model,
    folder_of,
    map_of,
    read_dump,
)
from lockstep.harness.exit_codes import BadInput as BadInput
from lockstep.harness.graph.honest_runs import AlongLlamaCpp
from lockstep.harness.http.session import is_address, is_served
from lockstep.harness.judging.lanes import lanes_of
from lockstep.harness.known.foreign import excused_if_foreign
from lockstep.harness.known.runs import excused_if_known
from lockstep.harness.processes.limits import MEMORY
from lockstep.harness.protocol.session import ProgramSession
from lockstep.harness.records import (
    BOTH,
    Answered,
    Busy,
    Crashed,
    EngineInfo,
    Malformed,
    Rejected,
    Settings,
    StageText,
    TimedOut,
    Unanswerable,
    Verdict,
)
from lockstep.harness.shadow.known import known_crash_of, perhaps_amx
from lockstep.harness.suites.decode import PROMPT

LLAMA_CPP = "llama.cpp"
REFERENCE, REPLAY = "reference", "replay"  # REPLAY may take REFERENCE's place, see stand_in
CELLS = 256  # llama.cpp's cache grows by so many cells
PROMPT_TOKENS = 64  # room for the prompt of `decode`, unless the user gives a longer one


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The arguments of a check."""

    case: str
    model: Path
    subject_model: Path
    engine: str = "reference"
    oracle: str = "llama.cpp"
    settings: Settings
    suites: tuple[str, ...] = ()  # empty: all suites
    by_name: bool = True  # True: the user named the suites, so all of them must run
    n_tokens: int = 32
    n_steps: int = 64
    prompt: bytes = PROMPT  # prompt of `decode`, if the model has a vocabulary
    seed: int = 0
    time_limit: float = 300.0  # seconds for an answer, and for a start
    memory_limit: int = MEMORY
    optional: bool = False  # True: a made model that no engine need support
    form: OracleForm = OracleForm.USUAL
    command: str = ""  # options that make this plan, for the command that repeats it


def suites_named(names: Sequence[str]) -> list[type[Suite]]:
    """Return the suites in the order of a run; all if none is named."""
    import_members("lockstep.harness.suites")
    chosen = [Suite.member(name) for name in names] or list(Suite.family.values())
    return sorted(set(chosen), key=lambda suite: suite.order)


def preflight(plan: Plan) -> ModelFacts:
    """Check that both files can be checked, and return the facts of the oracle's file. If a suite
    needs the vocabulary and it is broken, the error names the wrong key. Raises BadInput."""
    suites = suites_named(plan.suites)
    found = {}
    for path in dict.fromkeys((plan.model, plan.subject_model)):
        try:
            found[path] = facts = facts_of_model(path)
            if facts.has_vocabulary and any(suite.name == "tokens" for suite in suites):
                with GgufFile.open(path) as file:
                    tokenizer_of(file.metadata)
            check_length(plan, facts.n_positions)
            check_adapters(plan.settings, path)
            check_heads(plan.settings, path)
            if plan.prompt != PROMPT and not facts.has_vocabulary:
                raise Unsupported("the model has no vocabulary, so --prompt cannot be tokenized")
        except EngineError as error:
            raise BadInput(f"{path}: {error}") from error
        except OSError as error:
            raise BadInput(f"{error.filename or path}: {error.strerror or error}") from error
    return found[plan.model]


def check_length(plan: Plan, n_positions: int) -> None:
    """Check that the model has enough positions for the run. Raises Unsupported, which is an
    EngineError."""
    room = prompt_room(plan)
    options = (("--tokens", plan.n_tokens, STEPS_TRACED), ("--steps", plan.n_steps, room))
    for option, n, besides in options:
        if reason := too_long(n_positions, n + besides):
            raise Unsupported(f"{reason}; take {option} {n_positions - besides} or fewer")


def prompt_room(plan: Plan) -> int:
    """Return an upper limit for the number of tokens of the prompt. Each token has at least one
    byte, except for BOS and the space before the text."""
    return max(PROMPT_TOKENS, len(plan.prompt) + 2)


def settings_for(plan: Plan) -> Settings:
    """Return the preset with a cache and a ubatch large enough for the plan."""
    n_trained = plan.n_tokens + STEPS_TRACED
    needed = max(n_trained, plan.n_steps + prompt_room(plan))
    n_ctx = max(plan.settings.n_ctx, -(-needed // CELLS) * CELLS)
    return replace(plan.settings, n_ctx=n_ctx, n_ubatch=max(plan.settings.n_ubatch, plan.n_tokens))


def in_full(settings: Settings) -> Settings:
    """Return these settings with a cache that does not round keys and values. They are for a
    server, which does not report its cache, and for a program, which may ignore its settings."""
    return replace(settings, type_k="F32", type_v="F32", flash_attn=False)


@dataclass(kw_only=True)
class Opened:
    """Both engines, opened for a plan. Close it when done."""

    context: Context
    engines: tuple[EngineInfo, ...]

    def close(self) -> None:
        self.context.close()
        self.context.oracle.close()
        self.context.subject.close()
        self.context.llama_cpp.close()
        if self.context.in_full is not None:
            self.context.in_full.close()


def open_plan(plan: Plan, progress: Callable[[str], None]) -> Opened:
    dump = dump_given(plan)
    given = dump.batches if dump else ()
    plan = replace(plan, n_tokens=sum(map(len, given)) or plan.n_tokens)
    facts = preflight(plan)
    check_ids(plan, given, facts.n_vocab)
    if dump:
        check_names(dump, facts)
    engine = stand_in(plan.engine, facts)
    runner = Runner(time_limit=plan.time_limit, memory_limit=plan.memory_limit)
    settings = settings_for(plan)
    try:
        program = None
        if is_outside(engine):
            program = runner.open(engine, plan.subject_model, settings)
            # the program may not support every setting, and the oracle does
            progress(f"starting {program.name}")
            settings = describe_engine(program, under_test=True).settings or settings
            if why := why_not_followed(settings):
                program.close()
                raise BadInput(f"{program.name} {why}")
        for name in (plan.oracle, engine):
            provide(name, progress)
        adapters = settings.adapters
        settings = plan.form.settings_for(settings)
        oracle = runner.open(plan.oracle, plan.model, settings)
        progress(f"starting {plan.oracle}")
        build = describe_engine(oracle)
        settings = replace(settings, generic=build.generic)  # both round activations alike
        of_subject = replace(settings, adapters=adapters, turned=True)
        subject = program or runner.open(engine, plan.subject_model, of_subject)
        graph = plan.oracle == LLAMA_CPP
        llama_cpp = oracle if graph else runner.open(LLAMA_CPP, plan.model, settings)
        if not graph and named_folder() is not None:
            describe_engine(llama_cpp)  # checks that the user's libraries are the pinned ones
        check_used(llama_cpp, settings, plan.model)
        rounds = program is not None and in_full(settings) != settings
        full = runner.open(LLAMA_CPP, plan.model, in_full(settings)) if rounds else None
    except Unsupported as error:
        raise BadInput(str(error)) from error
    if not is_compiled(flash_attn=settings.flash_attn):
        progress(StageText("compiling kernels (some seconds, only in the first run)"))
    subject_info = describe_engine(subject, under_test=True)
    if engine == REPLAY and plan.oracle == LLAMA_CPP and plan.subject_model == plan.model:
        assert isinstance(subject, LocalSession)
        assert subject.adapter is not None
        subject.adapter.borrow(oracle)  # one worker shows its graph to both
        subject.lender = oracle
    return Opened(
        context=Context(
            case=plan.case,
            model=plan.model,
            subject_model=plan.subject_model,
            oracle=oracle,
            subject=subject,
            llama_cpp=llama_cpp,
            subject_info=subject_info,
            settings=settings,
            n_tokens=plan.n_tokens,
            n_steps=plan.n_steps,
            prompt=plan.prompt,
            seed=plan.seed,
            named=plan.by_name and bool(plan.suites),
            facts=facts,
            make_honest=along_llama_cpp,
            in_full=full,
            lanes=lanes_of(build.build),
            runner=runner,
            repro=lambda suite: f"lockstep check {plan.command} --suite {suite}",
            progress=progress,
            given=given,
        ),
        engines=(build, subject_info),
    )


def dump_given(plan: Plan) -> Dump | None:
    """Return the run in the subject's dump; None for other engines. Raises BadInput if the dump or
    the model is unusable."""
    folder = folder_of(plan.engine)
    if folder is None:
        return None
    try:
        dump = read_dump(folder, map_of(plan.engine))
        check_model(dump, plan.subject_model)
    except EngineError as error:
        raise BadInput(str(error)) from error
    except OSError as error:  # an error of the model's file
        raise BadInput(f"{plan.subject_model}: {error.strerror or error}") from error
    return dump


def check_names(dump: Dump, facts: ModelFacts) -> None:
    """Check that the node map fits the dump and the architecture. Raises BadInput if not."""
    try:
        check_map(dump, facts.architecture)
    except EngineError as error:
        raise BadInput(str(error)) from error


def check_ids(plan: Plan, given: Sequence[Batch], n_vocab: int) -> None:
    """Check that the model's vocabulary has all ids of the run. Raises BadInput if an id is
    missing, because an engine would be blamed for refusing it."""
    largest = max((int(batch.tokens.max()) for batch in given), default=-1)
    if n_vocab and largest >= n_vocab:
        text = f"the run has token {largest}, and {plan.model} has only {n_vocab} tokens"
        raise BadInput(f"{plan.engine}: {text}")


def stand_in(engine: str, facts: ModelFacts) -> str:
    """Return the engine to open. For a model without our own graph, our reference engine follows
    llama.cpp's graph (`replay`)."""
    replayed = engine == REFERENCE and facts.not_ours and not facts.no_run
    return REPLAY if replayed else engine


def along_llama_cpp(context: Context) -> AlongLlamaCpp:
    s = context.settings
    return AlongLlamaCpp(
        llama_cpp=context.llama_cpp,
        file=context.file,
        build=Build(lanes=context.lanes, n_threads=s.n_threads, generic=s.generic),
        embeddings=context.embeddings,
        flash_attn=s.flash_attn,
        in_full=context.in_full,
    )


def is_compiled(*, flash_attn: bool) -> bool:
    """Return True if numba's cache holds the compiled code of all honest runs, so that no run
    spends seconds on compiling. Products of weight formats may still be missing."""
    from lockstep.engine.kernels.compiled import is_kept  # imported here: the imports are slow
    from lockstep.engine.ops.flash_mirror import one_by_one
    from lockstep.engine.ops.rotation import recursion

    return is_kept(recursion) and (not flash_attn or is_kept(one_by_one))


def describe_engine(session: Session, *, under_test: bool = False) -> EngineInfo:
    """Describe an engine. Raises BadInput for a wrong request, and NoAnswer if the engine under
    test fails at its start, which becomes a verdict."""
    outcome = session.ask("describe")
    if isinstance(outcome, Unanswerable | Rejected) and (
        is_address(session.name) or is_served(session.name) or is_users(session.name)
    ):
        raise BadInput(f"{session.name}: {outcome.message}")
    if under_test and isinstance(outcome, Crashed | TimedOut | Busy | Malformed):
        raise no_answer(session.name, "describe", outcome)
    if isinstance(outcome, Rejected | Unanswerable) and isinstance(session, ProgramSession):
        declared = isinstance(outcome, Unanswerable) and outcome.declared
        before = "" if declared else f"{session.name} does not load the model: "
        text = before + outcome.message
        raise NoAnswer("not-compared", text, {})
    if not isinstance(outcome, Answered):
        why = line_that_says_why(str(no_answer(session.name, "describe", outcome)))
        raise BadInput(f"{session.name} cannot be started: {why}; see lockstep doctor")
    info: EngineInfo = outcome.value
    version = split_version(session.name)[1]
    if version and not info.version.endswith(f" {version}"):
        raise BadInput(
            f"the environment of {session.name} holds {info.version}; to rebuild it: "
            f"lockstep oracle remove {session.name}"
        )
    return replace(info, engine=session.name)


def run_suites(context: Context, names: Sequence[str]) -> Iterator[Verdict]:
    """Yield each suite's verdicts, with the engine that they are about."""
    suites = suites_named(names)
    for suite in suites:
        if suite.begin is not Suite.begin and not suite().inapplicable(context.facts):
            with suppress(NoAnswer, EngineError, OSError):  # the suite's run reports it
                suite().begin(context)
    runs = [(suite, suite().run) for suite in suites]
    finishes = [(suite, suite().finish) for suite in suites if suite.finish is not Suite.finish]
    for suite, work in runs + finishes:
        context.progress(StageText.of_suite(suite.name))
        about = context.oracle.name if suite.of_oracle_alone else BOTH
        for verdict in verdicts_of(suite, work, context):
            known = excused_if_known(verdict, context.facts.architecture, context.oracle.name)
            who, version = context.subject.name, context.subject_info.version
            if not isinstance(context.subject, DumpSession):  # a dump may claim any engine's name
                known = excused_if_foreign(known, who, version, context.subject_model)
            yield known if known.about != BOTH else replace(known, about=about)


def verdicts_of(
    suite: type[Suite], work: Callable[[Context], Iterator[Verdict]], context: Context
) -> Iterator[Verdict]:
    """Yield a suite's verdicts. A missing answer or an error in Lockstep is a verdict too."""
    if reason := suite().inapplicable(context.facts):
        if suite.expected or context.named:
            yield context.verdict(suite.name, "not-applicable", reason)
        return
    compared = False
    try:
        for verdict in work(context):
            compared = compared or verdict.status != "not-applicable"
            yield verdict
    except NoAnswer as error:
        if context.named and not compared and NOT_OFFERED in error.detail:  # the user named it
            error = NoAnswer("not-compared", error.summary, error.detail)
        yield verdict_for_no_answer(suite.name, context, error)
    except EngineError as error:
        yield context.verdict(suite.name, "not-compared", str(error))
    except Exception as error:  # a defect of one suite must not stop the others
        text = defect(f"{type(error).__name__}: {error}"[:500])
        detail = {"traceback": traceback.format_exc()}
        yield context.verdict(suite.name, "internal", text, detail, (suite.name, "internal"))


def verdict_for_no_answer(suite: str, context: Context, error: NoAnswer) -> Verdict:
    """Return the verdict for a question without an answer. It names a known crash of llama.cpp."""
    without_key = ("not-compared", "not-applicable")
    key = () if error.status in without_key else (suite, error.status)
    text, detail = patient(error).summary, error.detail
    crashed = error.status == "crashed" and context.oracle.name == "llama.cpp"
    known = known_crash_of(context) if crashed else ""
    if known:
        text, detail = f"{text} (known: {known})", {**detail, "known": known}
    elif crashed:
        text += perhaps_amx(context.settings, text)
    return context.verdict(suite, error.status, text, detail, key)


def defect(what: str) -> str:
    return f"Lockstep failed, please report this with the command and the traceback: {what}"
