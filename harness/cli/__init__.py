"""The command line: arguments in, exit code out. The only package that prints.

Exit codes: 0 conform, 1 divergence, 2 usage, configuration or adapter error, 3 incomplete.
"""

import os
import signal
import sys
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engine.choices import choices
from harness.cli import (
    answers,
    batch,
    bench,
    blackbox,
    diagnosis,
    engines,
    files,
    findings,
    fuzz,
    golden,
    matrix,
    oracle,
    real_models,
    selftest,
    shadow,
    smoke,
    synth,
    tokens,
    twin,
)
from harness.cli.options import (
    JsonOpt,
    OracleOpt,
    Preset,
    QuietOpt,
    ReportOpt,
    SeedOpt,
    TimeoutOpt,
)
from harness.inputs import read_text

if TYPE_CHECKING:  # everything of weight is imported by the command that needs it
    from harness.check import Plan
    from harness.cli.terminal import Terminal

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Conformance and differential testing for GGUF language-model engines.\n\n"
    "Runs two engines in step, usually a small reference engine and llama.cpp, and says where, "
    "why and by how much they part.\n\n"
    "Exit codes: 0 conform, 1 divergence, 2 usage or configuration error, 3 incomplete.",
)
app.add_typer(golden.app, name="golden")
app.add_typer(fuzz.app, name="fuzz")
app.add_typer(bench.app, name="bench")
app.add_typer(oracle.app, name="oracle")
app.add_typer(engines.app, name="engine")
fuzz.app.command("batch")(batch.fuzz_batch)
golden.app.command("fetch")(tokens.fetch)
golden.app.command("ops")(answers.ops)
fuzz.app.command("gguf")(files.fuzz_gguf)
app.command("synth")(synth.synth)
app.command("shadow")(shadow.shadow)
app.command("selftest")(selftest.selftest)
app.command("smoke")(smoke.smoke)
app.command("matrix")(matrix.matrix)
app.command("fetch")(real_models.fetch)
app.command("finding")(findings.finding)
app.command("twin")(twin.twin)


ModelArg = Annotated[Path, typer.Argument(help="A GGUF file, or builtin:NAME.", metavar="MODEL")]
OptModelArg = Annotated[
    Path | None,
    typer.Argument(help="A GGUF file, or builtin:NAME. Default: every built-in model."),
]
EngineOpt = Annotated[
    str,
    typer.Option(
        help="The engine under test: a command that starts yours (./my-engine --fast; lockstep "
        "smoke says how far it gets), one of lockstep engine list, a server's address "
        "(http://localhost:8080, openai:ADDRESS), "
        "dump:FOLDER, adapter:MODULE, a name that an installed package registers, or reference, "
        "fast, replay, llama.cpp, llama.cpp@VERSION, mutant:NAME, honest:NAME."
    ),
]
AdapterOpt = Annotated[
    str | None,
    typer.Option(
        help="The engine under test as a Python class of yours: MODULE or path/to/file.py, with "
        ":CLASS behind it if there are several. The same as --engine adapter:MODULE.",
        metavar="MODULE",
    ),
]
SettingsOpt = Annotated[
    Preset | None,
    typer.Option(
        help="exact: F32 cache, no flash attention, one thread. default: what users of llama.cpp "
        "run (F16 cache, flash attention). Default: exact; of a server, which says nothing of "
        "its settings, default."
    ),
]
SubjectOpt = Annotated[
    Path | None, typer.Option(help="Give the engine under test this file instead of MODEL.")
]
ArchOpt = Annotated[
    str | None,
    typer.Option(help="Make a model of this architecture, as synth does; all: of every one."),
]
MapOpt = Annotated[
    str | None,
    typer.Option(
        "--map",
        help="Translates the names of a dump's tensors: transformers, llama.cpp, or a file of "
        "yours (harness/node_maps says what is in one).",
    ),
]
STEPS_OF_VARIANTS = 16
REFERENCE = "reference"
SECONDS = 300.0  # of a Plan
TokensOpt = Annotated[int, typer.Option(help="Length of the prompt.", min=1, max=4096)]


@app.command()
def check(
    model: OptModelArg = None,
    engine: EngineOpt = REFERENCE,
    adapter: AdapterOpt = None,
    node_map: MapOpt = None,
    oracle: OracleOpt = "llama.cpp",
    settings: SettingsOpt = None,
    suite: Annotated[list[str] | None, typer.Option(help="Only this suite (repeatable).")] = None,
    arch: ArchOpt = None,
    subject_model: SubjectOpt = None,
    tokens: TokensOpt = 32,
    steps: Annotated[
        int | None,
        typer.Option(help="Tokens to generate. Default: 64; with --arch 16.", min=1, max=4096),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help='What decode goes on from. Default: "Once upon a time".')
    ] = None,
    seed: SeedOpt = 0,
    known: Annotated[
        Path | None,
        typer.Option(help="Divergences listed there are excused; one that is gone is an error."),
    ] = None,
    write_known: Annotated[
        Path | None, typer.Option(help="Write such a list of what diverges now; reasons stay.")
    ] = None,
    timeout: TimeoutOpt = SECONDS,
    report: ReportOpt = Path("reports"),
    as_json: JsonOpt = False,
    jobs: Annotated[int, typer.Option("-j", help="Models checked side by side.", min=1)] = 1,
    diagnose: Annotated[
        bool, typer.Option("--diagnose", help="Where something diverges, try known mistakes.")
    ] = False,
    quiet: QuietOpt = False,
) -> None:
    """Run every suite that applies.

    In order: metadata, tokens, dequant, logits, logprobs, embeddings, decode, text, trace,
    products, shadow. logprobs and text are for engines that show no logits.

    Without MODEL it checks the built-in seeded models. Examples:

    \b
      lockstep check
      lockstep check model.gguf --settings default
      lockstep check model.gguf --engine mutant:rope-half-split --suite trace
      lockstep check --arch qwen3
      lockstep check --arch all -j 2 --quiet
      lockstep check model.gguf --engine http://localhost:8080
      lockstep check model.gguf --adapter my_engine.py
      lockstep check model.gguf --engine dump:FOLDER --map transformers
      lockstep check model.gguf --engine ./my-engine --write-known known.json
      lockstep check model.gguf --engine ./my-engine --known known.json
    """
    from harness.cli.variants import variant_files
    from harness.known_failures import KnownFailures, check_writable, read_known
    from harness.known_failures import write_known as write_failures
    from harness.run import Listener, run_plans

    engine = engine_of(engine, adapter, node_map)
    if arch is not None and (model is not None or subject_model is not None):
        raise typer.BadParameter("--arch makes the model: give no MODEL, no --subject-model")
    n = steps or (64 if arch is None else STEPS_OF_VARIANTS)
    with screen(quiet, as_json) as out, model_folder() as folder:
        if write_known:
            check_writable(write_known)
        out.progress("models", "making them")
        files = models_of(model, folder) if arch is None else variant_files(arch, folder, seed)
        plans = [
            plan_of(
                *(name, path, engine, oracle, settings, subject_model, tokens, n, seed, suite),
                prompt=prompt,
                timeout=timeout,
            )
            for name, path in files
        ]
        listener = Listener(progress=out.progress, verdict=out.verdict)
        listed = read_known(known) if known else KnownFailures()
        result = run_plans(plans, report, ["lockstep", *sys.argv[1:]], jobs, listener, listed)
        out.summary(result, diagnosis.of_run(plans, result, out) if diagnose else ())
        if write_known:
            n = write_failures(write_known, result.verdicts, listed)
            out.remark(f"{n} divergences in {write_known}: write down why, and pass it as --known")
    raise typer.Exit(result.code)


@app.command()
def bisect(
    model: OptModelArg = None,
    engine: EngineOpt = REFERENCE,
    adapter: AdapterOpt = None,
    node_map: MapOpt = None,
    oracle: OracleOpt = "llama.cpp",
    settings: SettingsOpt = None,
    subject_model: SubjectOpt = None,
    tokens: TokensOpt = 32,
    seed: SeedOpt = 0,
    timeout: TimeoutOpt = SECONDS,
    black_box: Annotated[
        bool,
        typer.Option(
            "--black-box",
            help="Of an engine that shows no tensors: it is given models made of MODEL, a layer "
            "each, with parts made neutral, and such whose logits are decoded weights.",
        ),
    ] = False,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Find the first layer, then the op, then the elements where two engines part.

    Every op of the engine under test is computed from the engine's own inputs, so that the ops that
    introduce an error are told from those that pass it on. Then the oracle's tensors are put in at
    the culprits: if the rest agrees, they were all. Where the usual run agrees, what `check` asks
    besides is asked as well; where no op is found wrong, known mistakes are tried, as `diagnose`
    does. Exit code: 0 nothing to find, 1 culprits, 3 incomplete, 4 the engines
    part and no op is wrong on its own inputs. Without MODEL: the built-in model that the engine is
    known to be wrong on, or the first.
    """
    from harness.adapters import adapter_class
    from harness.children import result_of
    from harness.run import bisect_one, provide_engines
    from harness.runner import is_outside

    engine = engine_of(engine, adapter, node_map)
    with screen(quiet, as_json) as out, model_folder() as folder:
        cls = None if is_outside(engine) else adapter_class(engine)
        default = getattr(cls, "shows_on", "f32")
        name, path = next(iter(models_of(model or Path(f"builtin:{default}"), folder)))
        plan = plan_of(
            *(name, path, engine, oracle, settings, subject_model, tokens, 64, seed, ["trace"]),
            timeout=timeout,
        )
        provide_engines([plan], out.progress)
        if black_box:
            raise typer.Exit(blackbox.bisect(plan, folder, out))
        work = partial(bisect_one, plan)
        result = result_of(work, partial(out.progress, plan.case))
        code = out.bisection(plan, result, diagnosis.where_no_op_is_found(plan, result, out))
    raise typer.Exit(code)


@app.command("diagnose")
def diagnose_engine(
    model: ModelArg,
    engine: EngineOpt = REFERENCE,
    adapter: AdapterOpt = None,
    settings: SettingsOpt = None,
    subject_model: SubjectOpt = None,
    prompt: Annotated[str | None, typer.Option(help="As of check.")] = None,
    tokens: TokensOpt = 32,
    steps: Annotated[int, typer.Option(help="Tokens of text.", min=1, max=4096)] = 64,
    seed: SeedOpt = 0,
    timeout: TimeoutOpt = SECONDS,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Which known mistake makes the answers of an engine that is wrong?

    All that the engine can be asked (logits, lists, greedy tokens, text, ids) is asked of it, of
    the right engine, and where these part of some four hundred engines that are wrong in one known
    way each. A mistake is named if it gives all of the answers, within the noise of honest runs,
    and the right engine does not. Exit code: 0 all is as the right engine has it, 1 it is not, 3
    incomplete. Examples:

    \b
      lockstep diagnose model.gguf --engine ./my-engine
      lockstep diagnose model.gguf --engine http://localhost:8080
      lockstep diagnose builtin:f32 --engine mutant:rope-half-split
    """
    from harness.run import provide_engines

    engine = engine_of(engine, adapter, None)
    with screen(quiet, as_json) as out, model_folder() as folder:
        name, path = next(iter(models_of(model, folder)))
        plan = plan_of(
            *(name, path, engine, "llama.cpp", settings, subject_model, tokens, steps, seed, None),
            prompt=prompt,
            timeout=timeout,
        )
        provide_engines([plan], out.progress)
        code = out.diagnosis(plan, diagnosis.diagnosed(plan, out))
    raise typer.Exit(code)


@app.command()
def trace(
    model: ModelArg,
    output: Annotated[Path, typer.Option("-o", "--output", help="A folder for the tensors.")],
    engine: EngineOpt = "reference",
    settings: SettingsOpt = None,
    prompt: Annotated[str | None, typer.Option(help="Text instead of seeded tokens.")] = None,
    tokens: TokensOpt = 32,
    seed: SeedOpt = 0,
    quiet: QuietOpt = False,
) -> None:
    """Write every named tensor of a run: tensors.safetensors and index.json."""
    from harness.children import result_of
    from harness.dump import dump_trace
    from harness.run import provide_engines

    with screen(quiet) as out, model_folder() as folder:
        name, path = next(iter(models_of(model, folder)))
        plan = plan_of(name, path, engine, engine, settings, None, tokens, 1, seed, ["trace"])
        provide_engines([plan], out.progress)
        work = partial(dump_trace, plan, output, prompt)
        n, who = result_of(work, partial(out.progress, name))
        out.line(f"{n} tensors of {who} in {output}")


@app.command()
def run(
    model: ModelArg,
    prompt: Annotated[str | None, typer.Option(help="The text to go on from.")] = None,
    ids: Annotated[
        str | None, typer.Option(help="Or its ids, a JSON list: for models without a vocabulary.")
    ] = None,
    n: Annotated[int, typer.Option("-n", help="Tokens to generate.", min=1, max=100_000)] = 64,
    engine: Annotated[
        str | None,
        typer.Option(
            help="As of check. Default: fast, or llama.cpp for an architecture that our engine "
            "has no graph of."
        ),
    ] = None,
    settings: SettingsOpt = None,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Greedy text from any engine: the quick look."""
    from harness.quick import generate, ids_of

    with screen(quiet, as_json) as out, model_folder() as folder:
        if (prompt is None) is (ids is None):
            raise usage("give --prompt or --ids, and not both")
        name, path = next(iter(models_of(model, folder)))
        given = prompt if prompt is not None else ids_of(str(ids).encode())
        answer = generate(
            path,
            engine,
            preset_of(engine or "", settings),
            given,
            n,
            lambda text: out.progress(name, text),
        )
        if as_json:
            out.json(answer)
        else:
            if answer["why"]:
                out.remark(answer["why"])
            out.line(str(answer["ids"]) if answer["text"] is None else answer["text"])
            for tie in answer["ties"] or ():
                out.remark(
                    f"token {tie['token']} is {tie['chosen']}, and {tie['other']} is as likely: "
                    f"{tie['apart']:.2g} apart, and the engine is off from itself by "
                    f"{tie['noise']:.2g}; another engine may go on otherwise from here"
                )


@app.command()
def tokenize(
    model: ModelArg,
    text: Annotated[list[str] | None, typer.Option(help="A text (repeatable).")] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="A file: all of it is one text, of up to 64 MiB; -: standard input."),
    ] = None,
    engine: EngineOpt = "reference",
    decode: Annotated[
        bool, typer.Option("--decode", help="The inputs are JSON lists of ids; print text.")
    ] = False,
    special: Annotated[
        bool, typer.Option(help="Add BOS and the like where the model says so.")
    ] = True,
    parse_special: Annotated[
        bool, typer.Option(help="Read text that looks like a special token as that token.")
    ] = False,
) -> None:
    """Ids from any engine: one JSON list for each input. --decode goes the other way."""
    from harness.quick import decode_ids, encode_texts

    with screen(quiet=True) as out, model_folder() as folder:
        _, path = next(iter(models_of(model, folder)))
        inputs = [t.encode("utf-8", "surrogateescape") for t in text or []]
        if file is not None:
            inputs.append(read_text(file))
        if not inputs:
            raise usage("give --text or --file")
        work = decode_ids if decode else encode_texts
        for line in work(path, engine, inputs, special, parse_special):
            out.line(line)


@app.command()
def doctor(as_json: JsonOpt = False) -> None:
    """Versions, llama.cpp's build, CPU features, what is missing."""
    from harness.doctor import examine

    with screen(quiet=True, as_json=as_json) as out:
        code = out.examination(examine())
    raise typer.Exit(code)


# --- what the commands share ----------------------------------------------------------------


def screen(quiet: bool, as_json: bool = False) -> "Terminal":
    """Not called `terminal`: importing the module of that name would put it in the place."""
    from harness.cli.terminal import Terminal

    return Terminal(quiet=quiet, as_json=as_json)


def usage(message: str) -> Exception:
    from harness.check import BadInput

    return BadInput(message)


def model_folder() -> Any:
    """A folder for built-in models that lives as long as the command."""
    from tempfile import TemporaryDirectory

    return TemporaryDirectory(prefix="lockstep-")


def models_of(model: Path | None, folder: str) -> list[tuple[str, Path]]:
    """Names for the report, and files. Built-in models are written when they are asked for."""
    from harness.run import BUILTIN_PREFIX, builtin_model
    from harness.synth.builtin import BUILTIN

    if model is not None and not str(model).startswith(BUILTIN_PREFIX):
        return [(model.name, model)]
    names = list(BUILTIN) if model is None else [str(model).removeprefix(BUILTIN_PREFIX)]
    for name in names:
        if name not in BUILTIN:
            raise usage(f"no built-in model {name!r} {choices(name, BUILTIN)}")
    return [(f"{BUILTIN_PREFIX}{name}", builtin_model(name, Path(folder))) for name in names]


def engine_of(engine: str, adapter: str | None, node_map: str | None) -> str:
    from harness.adapters._users import PREFIX
    from harness.dumps import MAP, folder_of

    if node_map is not None:
        if folder_of(engine) is None:
            raise typer.BadParameter("--map translates the names of a dump: --engine dump:FOLDER")
        return engine + MAP + node_map
    if adapter is None:
        return engine
    if engine != REFERENCE:
        raise typer.BadParameter("--adapter names the engine under test, and so does --engine")
    return PREFIX + adapter


def preset_of(engine: str, settings: Preset | None) -> str:
    from harness.http.session import preset_for

    return settings.value if settings else preset_for(engine)


def plan_of(
    name: str,
    path: Path,
    engine: str,
    oracle: str,
    settings: Preset | None,
    subject_model: Path | None,
    tokens: int,
    steps: int,
    seed: int,
    suites: list[str] | None,
    *,
    prompt: str | None = None,
    timeout: float = SECONDS,
) -> "Plan":
    import shlex

    from harness.check import Plan
    from harness.cli.variants import VARIANT_PREFIX
    from harness.records import PRESETS
    from harness.run import BUILTIN_PREFIX
    from harness.suites.decode import PROMPT

    model = [name if name.startswith(BUILTIN_PREFIX) else str(path)]
    if name.startswith(VARIANT_PREFIX):
        model = ["--arch", name.removeprefix(VARIANT_PREFIX)]
    preset = preset_of(engine, settings)
    options = [*model, "--engine", engine, "--settings", preset]
    options += ["--oracle", oracle] if oracle != "llama.cpp" else []
    options += ["--subject-model", str(subject_model)] if subject_model else []
    options += ["--tokens", str(tokens), "--steps", str(steps), "--seed", str(seed)]
    options += ["--prompt", prompt] if prompt is not None else []
    options += ["--timeout", f"{timeout:g}"] if timeout != SECONDS else []
    return Plan(
        case=name,
        model=path,
        subject_model=subject_model or path,
        engine=engine,
        oracle=oracle,
        settings=PRESETS[preset],
        suites=tuple(suites or ()),
        n_tokens=tokens,
        n_steps=steps,
        prompt=PROMPT if prompt is None else prompt.encode("utf-8", "surrogateescape"),
        seed=seed,
        time_limit=timeout,
        command=shlex.join(options),
    )


# What click says of wrong options. Newer versions of typer carry a click of their own, which is not
# the one that `import click` finds: the class is asked for by its child, which both export.
CLICK_ERROR: Any = typer.BadParameter.__mro__[2]


class AskedToEnd(KeyboardInterrupt):
    """A KeyboardInterrupt itself, once it has passed through exec() (a dataclass being made), lets
    Python end by SIGINT, whoever caught it and with whatever exit code."""


def main() -> None:
    """Ends the process with the exit code; what click says of wrong options stays click's.

    Asked to end (kill, a closed terminal), a command cleans up as after Ctrl-C.
    """
    from engine.errors import EngineError
    from harness.allocator import keep_freed_memory

    came: list[int] = []

    def end(number: int, _: object) -> None:
        if not came:  # who asks twice does not stop the cleaning up
            came.append(number)
            raise AskedToEnd

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, end)
    # Read when numpy is loaded. Threads of a product that is as small as ours, a few rows of a
    # matrix, wait for each other on a busy machine: with two on two busy processors a model took
    # nine times the processor time that it takes with one. A user's own choice stays.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    keep_freed_memory()
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on it is an exception
        for stream in (sys.stdout, sys.stderr):  # a text that they cannot encode is no error
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        code = app(standalone_mode=False)
    except CLICK_ERROR as error:
        error.show()
        code = error.exit_code
    except EngineError as error:  # kernels cannot be compiled: noticed as soon as they are imported
        sys.stderr.write(f"lockstep: {error}\n")
        code = 2
    except (KeyboardInterrupt, typer.Abort):
        sys.stderr.write("lockstep: interrupted\n")
        code = 130
    sys.exit(128 + came[0] if came else code)
