"""Identifies the pinned llama.cpp among all builds that LLAMA_CPP_LIB_PATH can name.

Goldens, bounds and known divergences hold for one commit. Another commit as the oracle would blame
engines for llama.cpp's changes. Two facts identify the commit:

- The names that its libraries export, read before anything is loaded. They are compared for every
  function of libllama that is neither inline nor a template. C++ names include the parameters,
  because the C interface alone stays the same for hundreds of commits. For libggml-base the C
  interface is compared, which includes every op. Names that mention the standard library are
  excluded, because its builds spell them differently. So compilers, optimisation, instruction sets,
  backends and tools make no difference. libggml-cpu is ignored, because its exports depend on
  instruction sets. If ggml is in another folder or inside libllama, libllama's names decide alone.
- The facts that a user's library reports once it is loaded. These are its commit, if it was built
  in a clone, and the block size of every type, which a fork can change without a new name. ggml's
  version number proves nothing, because many commits share it.

A build of another commit passes if it changes only the bodies of functions and does not know its
commit.
"""

import hashlib
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from lockstep.engine.errors import Unsupported
from lockstep.harness.adapters.llama_cpp.elf import Elf, NotElf, own_target

LIBRARIES = "LLAMA_CPP_LIB_PATH"  # folder of the user's own build of the pinned llama.cpp
VERSION, COMMIT = "0.3.36", "0c1e57098"  # versions of llama-cpp-python and of its llama.cpp
UNKNOWN = "unknown"  # commit that a build without git reports
TYPES = "a3e54a686770ba89"  # digest of the table of weight types
STANDARD_LIBRARY = re.compile(rb"_Z.*(?:S[tsabiod]|va_list)")
EXAMPLES = 2  # number of names that a message lists
WANTED = (
    f"Wanted: llama.cpp {COMMIT} of llama-cpp-python {VERSION}, with any compiler and "
    f"flags. Build it, or unset {LIBRARIES}. For another release use --oracle "
    "llama.cpp@VERSION"
)


class OtherBuild(Unsupported):
    """The oracle's library is not the pinned one, or cannot be used."""


@dataclass(frozen=True)
class PinnedPart:
    """A library of llama.cpp, with its file, the exported names that identify it, and their number
    and digest."""

    file: str
    counts: re.Pattern[bytes]
    n_names: int
    digest: str

    def own_names(self, library: Elf) -> frozenset[bytes]:
        names = (name.replace(b"B5cxx11", b"") for name in library.exported)
        chosen = (name for name in names if self.counts.match(name))
        return frozenset(name for name in chosen if not STANDARD_LIBRARY.match(name))

    def is_pinned(self, names: frozenset[bytes]) -> bool:
        return digest_of(sorted(names)) == self.digest


LLAMA = PinnedPart(
    file="libllama.so",
    counts=re.compile(rb"(?:_ZNK?\d+|_Z\d+)?(?:llama|llm|LLM)_"),
    n_names=2077,
    digest="39c47fc94f9998aa",
)
GGML = PinnedPart(
    file="libggml-base.so",
    counts=re.compile(rb"(?:ggml|gguf)_"),
    n_names=614,
    digest="f7a3df0e31693727",
)


def digest_of(facts: Iterable[bytes]) -> str:
    return hashlib.sha256(b"\n".join(facts)).hexdigest()[:16]


def installed_folder() -> Path | None:
    """Return the folder of llama-cpp-python's libraries, without importing it."""
    spec = find_spec("llama_cpp")
    return Path(spec.origin).parent / "lib" if spec and spec.origin else None


def named_folder() -> Path | None:
    """Return the folder of the user's own libraries, or None."""
    return Path(os.environ[LIBRARIES]) if LIBRARIES in os.environ else None


def check_libraries() -> None:
    """Raise OtherBuild if the user chose libraries other than the pinned ones."""
    folder = named_folder()
    if folder is not None and (why := why_not_pinned(folder)):
        raise OtherBuild(f"{LIBRARIES}: {why}. {WANTED}")


def why_not_pinned(folder: Path) -> str:
    """Return the difference from the pinned libraries; "" if there is none."""
    path = folder / LLAMA.file
    try:
        state = path.stat()
        return compare(folder, state.st_size, state.st_mtime_ns)
    except OSError as error:
        return f"{error.filename or path}: {error.strerror or error}"


@cache
def compare(folder: Path, _size: int, _changed: int) -> str:
    """Return how the library differs from the pinned library; "" if it does not. The result is
    cached for an unchanged file. Raises OSError."""
    if sys.platform != "linux":
        return ""  # other systems use other formats
    path = folder / LLAMA.file
    try:
        library = Elf(path)
        if library.target != own_target():
            return f"{path} is built for {library.target}, this Python for {own_target()}"
        why = difference(LLAMA, library, path)
        for name in () if why else library.needed:
            path = folder / name
            if name.startswith(GGML.file) and path.is_file():
                why = difference(GGML, Elf(path), path)
        return why
    except NotElf as error:
        return f"{path} {error}"


def difference(part: PinnedPart, library: Elf, path: Path) -> str:
    """Describe the difference from the pinned library; "" if there is none. If the installed
    library is the pinned one, the text names the exports that differ."""
    names = part.own_names(library)
    if part.is_pinned(names):
        return ""
    if not names:
        return f"{path} is not llama.cpp: it exports none of {part.n_names} names"
    folder = installed_folder()
    ours = folder / part.file if folder else path
    pinned = part.own_names(Elf(ours)) if ours.is_file() else names
    if not part.is_pinned(pinned):
        found = f"{len(names)} names with digest {digest_of(sorted(names))}"
        wanted = f"{part.n_names} names with digest {part.digest}"
        return f"{path} is a different llama.cpp: it exports {found}, not {wanted}"
    lacks, more = show_names(sorted(pinned - names)), show_names(sorted(names - pinned))
    what = f"it lacks {lacks} of {part.n_names} names, and has {more} more"
    return f"{path} is a different llama.cpp: {what}"


def show_names(names: Sequence[bytes]) -> str:
    plainest = sorted(names, key=lambda name: name.startswith(b"_Z"))[:EXAMPLES]
    some = ", ".join(map(readable, plainest))
    return f"{len(names)} ({some})" if some else "none"


def readable(name: bytes) -> str:
    """Return a readable name, such as `llama_context::decode` for `_ZN13llama_context6decodeEv`."""
    parts, rest = [], re.sub(rb"^_ZN?K?", b"", name)
    while size := re.match(rb"\d+", rest):
        end = size.end() + int(size[0])
        parts.append(rest[size.end() : end])
        rest = rest[end:]
    return b"::".join(parts or [name]).decode(errors="replace")


def check_loaded(commit: str, types: Iterable[tuple[str, int, int]]) -> None:
    """Raise OtherBuild if the loaded libraries report a commit or weight types other than the
    pinned ones.

    types: the name of each weight type, the weights of a block, and the bytes of a block.
    """
    if named_folder() is None:
        return
    said = commit.removesuffix("-dirty")
    if said != UNKNOWN and not (COMMIT.startswith(said) or said.startswith(COMMIT)):
        raise OtherBuild(f"{LIBRARIES}: llama.cpp says that it is commit {said:.40}. {WANTED}")
    found = digest_of(repr(row).encode() for row in types)
    if found != TYPES:
        raise OtherBuild(f"{LIBRARIES}: weight types have digest {found}, not {TYPES}. {WANTED}")
