"""`lockstep acid`: models whose text is a report on the engine that runs them."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from lockstep.harness.cli.options import JsonOpt, QuietOpt

app = typer.Typer(
    no_args_is_help=True,
    help="Models with constructed weights. An engine that runs one writes a report on itself. For "
    "engines that show only text: no adapter, no Python.",
)
# copies of names in harness/acid, whose import would make --help slow
ACID_ARCHITECTURES = "llama llama-moe qwen3 gpt2 gemma3"
ACID_TYPES = "F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 IQ4_NL MXFP4 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_XS"
ArchOpt = Annotated[str, typer.Option(help=f"One of: {ACID_ARCHITECTURES}.")]
QuantOpt = Annotated[
    str,
    typer.Option(help=f"Type of the matrices, or of the extra matrix under test: {ACID_TYPES}."),
]


@app.command()
def write(
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.")],
    arch: ArchOpt = "llama",
    quant: QuantOpt = "F32",
    quiet: QuietOpt = False,
) -> None:
    """Write an acid model. Its bytes are the same on every machine. Run it in the engine under
    test.

    In a chat, any message gives the full report, because the chat template contains the acid
    prompt. As a completion, any prompt gives a report; the acid prompt (`lockstep acid list
    --prompt`) gives the full report. Let the engine write 64 tokens, then give the text to
    `lockstep acid read`. Example:

        lockstep acid write -o acid.gguf
    """
    from lockstep.harness.acid.write import write_acid
    from lockstep.harness.check.inputs import check_folder_of
    from lockstep.harness.cli.shared import screen
    from lockstep.harness.report.header import sha256_of

    with screen(quiet) as out:
        check_folder_of(output)
        write_acid(output, arch, quant)
        out.line(f"{output}: {output.stat().st_size:,} bytes, sha256 {sha256_of(output)}")


@app.command("list")
def list_(
    arch: ArchOpt = "llama",
    quant: QuantOpt = "F32",
    prompt: Annotated[
        bool, typer.Option("--prompt", help="Only print the acid prompt, for raw completion.")
    ] = False,
) -> None:
    """List the target of each test, the lead of the right answer, and the mistakes that each test
    distinguishes. Also list what no test covers. Example:

    \b
      lockstep acid list
    """
    from lockstep.harness.acid.explain import list_tests
    from lockstep.harness.acid.report import report_for
    from lockstep.harness.acid.uncovered import REASONS
    from lockstep.harness.acid.write import check_known
    from lockstep.harness.cli.shared import screen

    with screen(quiet=True) as out:
        check_known(arch, quant)
        if prompt:
            out.data(report_for(arch, quant).prompt)
            return
        for line in list_tests(report_for(arch, quant)):
            out.line(line)
        out.line("no test sees:")
        for what, why in REASONS:
            out.line(f"  {what}: {why}")


@app.command()
def read(
    file: Annotated[
        Path,
        typer.Argument(help="A file with the engine's text; -: standard input.", metavar="FILE|-"),
    ],
    as_json: JsonOpt = False,
) -> None:
    """Explain a report. The text may contain other output of the engine.

    Exit codes: 0 every test ok, 1 a NO, 2 no report in the text, 3 the report is incomplete.
    Examples:

    \b
      lockstep acid read answer.txt
      llama-cli -m acid.gguf -n 400 -p hi | lockstep acid read -
    """
    from lockstep.harness.acid.explain import explain
    from lockstep.harness.acid.read import read_report
    from lockstep.harness.check.inputs import read_text
    from lockstep.harness.cli.shared import screen, usage

    with screen(quiet=True, as_json=as_json) as out:
        reading = read_report(read_text(file).decode("utf-8", "replace"))
        if as_json:
            out.json({**asdict(reading), "complete": reading.complete, "exit_code": reading.code})
        elif reading.problem:
            raise usage(f"{file}: {reading.problem}")
        else:
            for line in explain(reading):
                out.line(line)
    raise typer.Exit(reading.code)
