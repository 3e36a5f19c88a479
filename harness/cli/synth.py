"""`lockstep synth`: small seeded models of any architecture."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lockstep.harness.cli.options import QuietOpt, check_float32

if TYPE_CHECKING:
    from lockstep.harness.cli.terminal import Terminal

SYNTH_TYPES = (  # copy of names in harness/synth/generator.py, whose import would make --help slow
    "F32 F16 BF16 F64 Q1_0 Q2_0 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ1_S IQ1_M "
    "IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4 NVFP4"
)
# options for any architecture, and the sizes among them with ggml's names
ANY = ("output", "arch", "quant", "seed", "list_only", "no_vocab", "quiet")
SIZES = {
    "layers": "n_layer",
    "width": "n_embd",
    "heads": "n_head",
    "kv_heads": "n_head_kv",
    "ff": "n_ff",
    "vocabulary": "n_vocab",
    "experts": "n_expert",
    "experts_used": "n_expert_used",
}


def synth(
    context: typer.Context,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The file to write.")
    ] = None,
    arch: Annotated[str, typer.Option(help="llama, or a name from --list.")] = "llama",
    quant: Annotated[
        str, typer.Option(help=f"Type of the matrices, any of: {SYNTH_TYPES}.")
    ] = "F32",
    seed: Annotated[
        int, typer.Option(help="Seed of all random numbers.", min=0, max=2**63 - 1)
    ] = 0,
    layers: Annotated[int, typer.Option(min=1, max=512)] = 2,
    width: Annotated[int, typer.Option(help="n_embd", min=2, max=65536)] = 64,
    heads: Annotated[int, typer.Option(min=1, max=1024)] = 4,
    kv_heads: Annotated[int, typer.Option(min=1, max=1024)] = 2,
    head_size: Annotated[int, typer.Option(help="0: width / heads", min=0, max=4096)] = 0,
    ff: Annotated[int, typer.Option(help="n_ff", min=1, max=1_000_000)] = 96,
    vocabulary: Annotated[int, typer.Option(help="Number of tokens.", min=1, max=1_000_000)] = 384,
    experts: Annotated[int, typer.Option(help="0: dense", min=0, max=512)] = 0,
    experts_used: Annotated[int, typer.Option(min=0, max=512)] = 0,
    tied: Annotated[
        bool, typer.Option("--tied", help="Share the embedding with the output head.")
    ] = False,
    rope_freqs: Annotated[bool, typer.Option("--rope-freqs", help="Frequency factors.")] = False,
    rope_factor: Annotated[
        float, typer.Option(help="Linear rope scaling; 0: none.", min=0, callback=check_float32)
    ] = 0.0,
    rope_base: Annotated[
        float,
        typer.Option(
            help="rope.freq_base. Engines that ignore it use 10000.", min=1, callback=check_float32
        ),
    ] = 10000.0,
    eps: Annotated[
        float,
        typer.Option(
            help="layer_norm_rms_epsilon; most models have 1e-5 or 1e-6.",
            min=0,
            callback=check_float32,
        ),
    ] = 1e-5,
    no_vocab: Annotated[bool, typer.Option("--no-vocab", help="No tokenizer.")] = False,
    lora: Annotated[
        Path | None,
        typer.Option(help="Write a LoRA file for this model instead, with a pair for each matrix."),
    ] = None,
    rank: Annotated[int, typer.Option(help="Rank of --lora.", min=1, max=4096)] = 4,
    alpha: Annotated[
        float,
        typer.Option(
            help="adapter.lora.alpha of --lora; 0: only the scale counts.", callback=check_float32
        ),
    ] = 8.0,
    control_vector: Annotated[
        Path | None, typer.Option(help="Write a control vector for this model instead.")
    ] = None,
    list_only: Annotated[
        bool,
        typer.Option("--list", help="List the architectures, and those that synth cannot make."),
    ] = False,
    quiet: QuietOpt = False,
) -> None:
    """Write a small seeded model. The same options give the same bytes on every machine.

    The defaults are for llama. For other architectures, llama.cpp's loader determines the tensors,
    including biases and factors that published files may lack. Sizes are tiny and consistent,
    except the sizes that you give. The vocabulary is of the same kind as in published models, if
    this kind is known. --tied, --eps, --head-size and --rope-... are only for llama. Examples:

    \b
      lockstep synth -o tiny.gguf --quant Q4_0
      lockstep synth -o tiny.gguf --rope-base 2500 --eps 4e-5
      lockstep synth -o tiny.gguf --arch qwen3 --width 256 --layers 4 --quant Q4_K
      lockstep synth -o adapter.gguf --lora tiny.gguf --rank 8
      lockstep synth -o vector.gguf --control-vector tiny.gguf
    """
    from lockstep.harness.cli.shared import screen, usage
    from lockstep.harness.report.header import sha256_of
    from lockstep.harness.synth.llama import LlamaRecipe, write_llama

    with screen(quiet=quiet) as out:
        if list_only:
            list_variants(out)
            return
        if output is None:
            raise usage("name the file to write: -o FILE")
        if lora or control_vector:
            if lora and control_vector:
                raise usage("--lora and --control-vector write different files: give one of them")
            write_adapter(lora, control_vector, output, seed=seed, rank=rank, alpha=alpha)
            out.line(f"{output}: {output.stat().st_size:,} bytes, sha256 {sha256_of(output)}")
            return
        if arch != "llama":
            sizes = sizes_given(context, arch)
            n_vocab = 0 if no_vocab else vocabulary
            left = write_any(arch, output, seed, quant, sizes, vocabulary=n_vocab)
            out.line(f"{output}: {output.stat().st_size:,} bytes, sha256 {sha256_of(output)}")
            if left:
                out.line(
                    f"stored as F32, because their rows are not a multiple of the {quant} block: "
                    f"{', '.join(left)}"
                )
            for line in besides(output):
                out.line(line)
            return
        recipe = LlamaRecipe(
            seed=seed,
            quant=quant,
            n_layer=layers,
            n_embd=width,
            n_head=heads,
            n_head_kv=kv_heads,
            n_embd_head=head_size,
            n_ff=ff,
            n_vocab=vocabulary,
            n_expert=experts,
            n_expert_used=experts_used,
            tied=tied,
            rope_freqs=rope_freqs,
            rope_linear_factor=rope_factor,
            rope_freq_base=rope_base,
            f_norm_rms_eps=eps,
            vocabulary=not no_vocab,
        )
        write_llama(recipe, output)
        out.line(f"{output}: {output.stat().st_size:,} bytes, sha256 {sha256_of(output)}")


def write_adapter(
    lora: Path | None,
    control_vector: Path | None,
    output: Path,
    *,
    seed: int,
    rank: int,
    alpha: float,
) -> None:
    from lockstep.harness.check.inputs import check_file
    from lockstep.harness.synth.adapters import LoraRecipe, write_control_vector, write_lora

    if lora:
        recipe = LoraRecipe(seed=seed, rank=rank, alpha=alpha)
        write_lora(recipe, check_file(lora), output)
    elif control_vector:
        write_control_vector(seed, check_file(control_vector), output)


def sizes_given(context: typer.Context, arch: str) -> dict[str, int]:
    """Return the sizes given on the command line. Refuse sizes that only llama models support."""
    from lockstep.harness.cli.shared import usage

    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = [name for name, at in sources.items() if at and at.name == "COMMANDLINE"]
    if unknown := [name for name in given if name not in SIZES and name not in ANY]:
        options = ", ".join("--" + name.replace("_", "-") for name in unknown)
        raise usage(f"{options}: only for llama, not for {arch}")
    return {SIZES[name]: context.params[name] for name in given if name in SIZES}


def write_any(
    arch: str, output: Path, seed: int, quant: str, sizes: dict[str, int], *, vocabulary: int
) -> list[str]:
    """Write a model of any architecture. Return the names of matrices that do not have the
    requested type. `vocabulary` is the number of tokens, used if the architecture's usual kind of
    vocabulary is known; 0 means no vocabulary."""
    from dataclasses import replace

    from lockstep.harness.shadow.models import make_variant, open_for_variants
    from lockstep.harness.synth.any_arch import variant_named, with_vocabulary

    variant = replace(variant_named(arch), sizes=tuple(sizes.items()))
    variant = with_vocabulary(variant, vocabulary)
    with open_for_variants() as session:
        return make_variant(variant, output, seed=seed, quant=quant, insist=True, session=session)


def besides(path: Path) -> list[str]:
    """Return a warning about tensors that llama.cpp reads but few published files have. Without the
    warning, authors of engines that ignore them would search for a fault in vain."""
    from lockstep.engine.gguf.file import GgufFile

    with GgufFile.open(path) as file:
        names = [name for name in file.tensors if name.endswith("scale")]
    if not names:
        return []
    return [
        f"the file has {len(names)} scales of matrices such as {names[0]}. llama.cpp applies "
        "them, and few published files have them; an engine that ignores them diverges on this "
        "file"
    ]


def list_variants(out: "Terminal") -> None:
    from lockstep.harness.synth.any_arch import IMPOSSIBLE, variants

    made = variants()
    for variant in made.values():
        out.line(f"{variant.name:24} {'experts' if variant.moe else 'dense'}")
    for name, reason in IMPOSSIBLE.items():
        out.line(f"{name:24} not made: {reason}")
    out.line(f"{len(made)} variants; not made: {len(IMPOSSIBLE)}")
