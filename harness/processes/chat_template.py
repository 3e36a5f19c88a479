"""Renders a chat template with Jinja, in its sandbox, in a process with limited time and memory.

A template comes from a model file and is untrusted. The sandbox protects our objects, but does not
prevent `'x' * 10**11`. Run as a program, this module reads one JSON object and writes the text.
"""

import json
import os
import subprocess
import sys

from lockstep.harness.processes import limits

TIME_LIMIT_SECONDS = 20.0
MEMORY_LIMIT_BYTES = 1 << 30
MAX_TEXT_BYTES = 1 << 20


class NoText(Exception):
    """Error: the template could not be rendered. Its message is one sentence with the reason."""


def render_apart(template: str, message: str, bos: str, eos: str) -> str:
    """Render a template in a limited process, and return the text. Raises NoText with the
    reason."""
    leash = [sys.executable, "-I", "-S", limits.__file__, str(os.getpid())]
    given = {"template": template, "message": message, "bos_token": bos, "eos_token": eos}
    try:
        done = subprocess.run(
            [*leash, str(MEMORY_LIMIT_BYTES), sys.executable, "-m", __name__],
            input=json.dumps(given).encode(),
            capture_output=True,
            timeout=TIME_LIMIT_SECONDS,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NoText(f"rendering takes more than {TIME_LIMIT_SECONDS:g} s") from error
    if done.returncode or len(done.stdout) > MAX_TEXT_BYTES:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["out of memory"]
        raise NoText(last[-1][:200] if done.returncode else "the text is longer than 1 MiB")
    return done.stdout.decode()


def render(template: str, message: str, bos_token: str, eos_token: str) -> str:
    """Render a chat with the settings of transformers: trimmed blocks, loop controls, an immutable
    sandbox."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )

    def refuse(text: str) -> None:
        raise ValueError(text)

    environment.globals["raise_exception"] = refuse
    return environment.from_string(template).render(
        messages=[{"role": "user", "content": message}],
        add_generation_prompt=True,
        bos_token=bos_token,
        eos_token=eos_token,
    )


def main() -> None:
    text = render(**json.load(sys.stdin)).encode("utf-8", "replace")
    with open(1, "wb", closefd=False) as out:
        out.write(text)


if __name__ == "__main__":
    main()
