"""A finding about a foreign engine as somebody else can see it: its smallest file, and its text."""

from pathlib import Path

from harness.gguf_writer import write_gguf
from harness.known.foreign import Finding
from harness.synth.llama import LlamaRecipe, check, metadata, tensors

FILE = "case.gguf"


def write_case(finding: Finding, path: Path) -> None:
    """The same bytes everywhere."""
    recipe = LlamaRecipe(**finding.recipe)
    check(recipe)
    keys = metadata(recipe) | {key: (kind, value) for key, (kind, value) in finding.keys.items()}
    kept = {key: value for key, value in keys.items() if key not in finding.without}
    write_gguf(path, kept, tensors(recipe))


def commands(finding: Finding) -> tuple[str, ...]:
    suites = " ".join(f"--suite {suite}" for suite in finding.suites)
    return (
        f"lockstep engine add {finding.engine}",
        f"lockstep finding {finding.id} -o {FILE}",
        f"lockstep check {FILE} --engine {finding.engine} {suites}",
    )


def text_of(finding: Finding) -> str:
    """As it could be filed."""
    seen = f"{finding.engine} {finding.version}, by `lockstep check`: {', '.join(finding.suites)}"
    lines = [f"# {finding.sentence}", "", f"Seen in {seen}.", ""]
    lines += [f"Cause: {finding.cause}", "", "To see it:", ""]
    lines += [f"    {line}" for line in commands(finding)]
    lines += ["", f"Status: {finding.status}"]
    return "\n".join([*lines, *([finding.link] if finding.link else [])])
