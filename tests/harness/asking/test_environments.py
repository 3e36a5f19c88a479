"""Other versions of an engine: an environment is built completely or not at all, and a failed build
states its reason."""

import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.errors import Unsupported
from lockstep.harness.adapters import adapter_class, split_version
from lockstep.harness.asking import environments
from lockstep.harness.asking.downloads import CACHE, last_words
from lockstep.harness.asking.environments import (
    LIBRARIES,
    NotBuilt,
    built_versions,
    folder_of,
    provide,
    python_of,
    remove,
    variables,
)
from lockstep.harness.check.check import BadInput, describe_engine
from lockstep.harness.cli import app
from lockstep.harness.context.runner import Runner, Session, environment
from lockstep.harness.records import EXACT, Answered, EngineInfo, Outcome

NAME = "llama.cpp@0.3.8"
# an sdist without dependencies, which takes the place of llama-cpp-python's
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
BACKEND = """
import base64, hashlib, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    assert not BROKEN, "the compiler says no"
    name = "llama_cpp_python-VERSION-py3-none-any.whl"
    info = "llama_cpp_python-VERSION.dist-info"
    files = {
        "llama_cpp/__init__.py": MODULE,
        f"{info}/METADATA": "Metadata-Version: 2.1\\nName: llama-cpp-python\\nVersion: VERSION\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    record = "".join(f"{file},,\\n" for file in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        for file, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(file, text)
    return name
"""
Sdist = Callable[..., None]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache, with a pip that sees only our folder."""
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv(LIBRARIES, str(tmp_path / "none"))  # the installed library must not be used
    monkeypatch.setattr(environments, "WORKER_NEEDS", ())
    return tmp_path / "cache" / "engines"


@pytest.fixture
def sdist(tmp_path: Path) -> Sdist:
    """Return a function that puts a version where pip finds it."""

    def make(version: str, module: str = "", broken: bool = False) -> None:
        backend = BACKEND.replace("VERSION", version).replace("BROKEN", str(broken))
        files = {
            "pyproject.toml": PROJECT,
            "backend.py": backend.replace("MODULE", repr(module)),
            "PKG-INFO": f"Metadata-Version: 2.1\nName: llama_cpp_python\nVersion: {version}\n",
        }
        with tarfile.open(tmp_path / f"llama_cpp_python-{version}.tar.gz", "w:gz") as tar:
            for name, text in files.items():
                info = tarfile.TarInfo(f"llama_cpp_python-{version}/{name}")
                info.size = len(text)
                tar.addfile(info, io.BytesIO(text.encode()))

    return make


@pytest.mark.parametrize("has_amx", [True, False], ids=["with AMX", "without"])
def test_builds_avoid_amx_on_processors_that_have_it(
    has_amx: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that GCC 12 compiles does not set up AMX, so llama.cpp dies at its first product."""
    cpu = tmp_path / "cpuinfo"
    cpu.write_text(f"model : 1\nflags\t: fpu {'amx_tile ' * has_amx}sse2\n")
    monkeypatch.setattr(environments, "CPU", cpu)
    monkeypatch.setenv("CXXFLAGS", "-O1")
    monkeypatch.delenv("CFLAGS", raising=False)
    code = "import os; print([os.environ.get(n) for n in ('CFLAGS', 'CXXFLAGS')])"
    without = environments.WITHOUT_AMX
    flags = [without, f"-O1 {without}"] if has_amx else [None, "-O1"]
    said = environments.run_command([sys.executable, "-c", code], "no", lambda _: None)
    assert said.strip() == str(flags)


def left_in(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir())


def test_version_can_be_built_listed_used_and_removed(sdist: Sdist, cache: Path) -> None:
    sdist("0.3.8", f"import os\n__version__ = '0.3.8'\nassert {LIBRARIES!r} not in os.environ")
    said: list[str] = []
    folder = provide(NAME, said.append)
    assert folder == folder_of(NAME)
    assert said[0] == "building llama-cpp-python 0.3.8 from source (only once; takes minutes)"
    assert list(built_versions("llama.cpp")) == [(NAME, folder)]
    assert left_in(cache) == ["build.lock", folder.name]
    n_said = len(said)
    assert provide(NAME, said.append) == folder
    assert len(said) == n_said
    shown = [str(python_of(NAME)), "-c", "import llama_cpp; print(llama_cpp.__file__)"]
    done = subprocess.run(shown, capture_output=True, text=True, check=True, env=variables())
    assert done.stdout.startswith(str(folder))
    assert remove(NAME) == folder
    assert left_in(cache) == ["build.lock"]


@pytest.mark.parametrize(
    ("version", "module", "broken", "says"),
    [
        ("0.3.9", "", False, r"pip could not install llama-cpp-python 0\.3\.8: .*No matching"),
        ("0.3.8", "", True, r"pip could not install llama-cpp-python 0\.3\.8: .*compiler says no"),
        ("0.3.8", "import no_such", False, "built and does not load: .*No module named 'no_such'"),
    ],
    ids=["unknown version", "broken build", "broken library"],
)
def test_unavailable_version_gives_one_sentence_and_leaves_no_files(
    sdist: Sdist, cache: Path, version: str, module: str, broken: bool, says: str
) -> None:
    sdist(version, module, broken)
    (cache / ".building-1" / "environment").mkdir(parents=True)  # left by a build that was killed
    with pytest.raises(NotBuilt, match=says) as caught:
        provide(NAME)
    assert "\n" not in str(caught.value)
    assert left_in(cache) == ["build.lock"]


def test_failed_download_quotes_pip(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(NotBuilt, match=r"[Cc]onnection.*No matching distribution"):
        provide(NAME)
    assert left_in(cache) == ["build.lock"]


@pytest.mark.parametrize(
    "version",
    ["", "..", "../../x", "0.3.8; true", "0.3.8 --pre", "0.3.*", ">=0", "latest", "0.3.8\n"],
)
def test_only_a_valid_version_reaches_pip_or_a_path(version: str) -> None:
    with pytest.raises(
        Unsupported, match=r"not a version.*; expected a name such as llama\.cpp@0\.3\.8"
    ):
        python_of(f"llama.cpp@{version}")


@pytest.mark.parametrize("version", ["0.3.8", "1.0rc1", "0.2.90.post1", "1!2.0.dev3"])
def test_published_version_names_are_accepted(version: str) -> None:
    with pytest.raises(NotBuilt, match=rf"lockstep oracle add llama\.cpp@{version}"):
        python_of(f"llama.cpp@{version}")


@pytest.mark.parametrize("name", ["reference@1", "gguf-py@0.18.0", "mutant:wrong-eps@2"])
def test_engine_with_a_single_version_refuses_another(name: str) -> None:
    with pytest.raises(Unsupported, match="has no other versions"):
        Runner().open(name, None, EXACT)


def test_an_engine_that_does_not_exist_is_refused_with_its_version() -> None:
    with pytest.raises(Unsupported, match=r"no engine named 'lama\.cpp'"):
        provide("lama.cpp@0.3.8")


def test_the_installed_engine_needs_no_environment(cache: Path) -> None:
    assert provide("llama.cpp") is None
    assert provide("mutant:wrong-eps") is None
    assert not cache.exists()


def test_a_version_is_asked_through_the_same_adapter() -> None:
    assert split_version(NAME) == ("llama.cpp", "0.3.8")
    assert adapter_class(NAME) is adapter_class("llama.cpp")


def test_worker_prefers_the_packages_of_its_environment(cache: Path) -> None:
    """`describe` reports the version of the loaded llama_cpp: the environment's stand-in, although
    the real package is installed too."""
    folder = folder_of(NAME)
    make = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(make, check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    # makes all installed packages visible
    (site / "numpy.pth").write_text(str(Path(np.__file__).parents[1]))
    (site / "llama_cpp").mkdir()
    text = "__version__ = 'a stand-in'\nraise NotImplementedError(__file__)"
    (site / "llama_cpp" / "__init__.py").write_text(text)
    with Runner(time_limit=60).open(NAME, None, EXACT) as session:
        outcome = session.ask("describe")
    assert not isinstance(outcome, Answered)
    assert f"NotImplementedError: {site / 'llama_cpp'}" in str(outcome)


class Stranger(Session):
    name = NAME

    def _ask(self, *_: Any) -> Outcome:
        info = EngineInfo(engine="llama.cpp", version="llama-cpp-python 0.3.36")
        return Answered(value=info, seconds=0.0)


def test_environment_with_another_version_is_not_used_as_oracle() -> None:
    with pytest.raises(BadInput, match=r"llama\.cpp@0\.3\.8 holds llama-cpp-python 0\.3\.36"):
        describe_engine(Stranger())


@pytest.mark.parametrize(
    "command",
    [
        ("oracle", "add", NAME),
        ("oracle", "remove", NAME),
        ("check", "builtin:f32", "--oracle", NAME),
        ("fuzz", "quants", "--cases", "1", "--engine", NAME),
        ("run", "builtin:f32", "--prompt", "a", "--engine", NAME),
    ],
    ids=" ".join,
)
def test_missing_version_gives_one_line_and_exit_code_2(
    command: tuple[str, ...], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*_: object) -> None:
        raise NotBuilt("llama.cpp@0.3.8 cannot be had")

    monkeypatch.setattr(environments, "build", build)
    with pytest.raises(SystemExit) as end:
        app([*command, *(["--quiet"] if command[0] != "oracle" else [])])
    assert end.value.code == 2
    said = capfd.readouterr()
    assert said.out == ""
    assert re.fullmatch(
        r"lockstep: llama\.cpp@0\.3\.8 (cannot be had|is not built yet.*)\n", said.err
    )


def test_quoted_pip_output_omits_addresses_and_advice() -> None:
    text = "a\nERROR: b https://x.y/z\nc\n\n[notice] a new release of pip"
    assert last_words(text) == "ERROR: b (address)"
    assert last_words(text, 2) == "ERROR: b (address); c"
    assert last_words("") == "pip printed no reason"


def test_users_build_is_not_loaded_by_another_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(LIBRARIES, "build/bin")
    assert environment(None)[LIBRARIES] == "build/bin"
    assert LIBRARIES not in environment(Path("python"))


def test_build_reports_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "SAY_SECONDS", 0.05)
    waited: list[float] = []
    command = [sys.executable, "-c", "import time; print(1); time.sleep(0.4); print(2)"]
    assert environments.run_command(command, "it fails", waited.append) == "1\n2\n"
    assert len(waited) >= 3
    assert waited == sorted(waited)


def test_endless_build_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "SAY_SECONDS", 0.05)
    monkeypatch.setattr(environments, "BUILD_SECONDS", 0.2)
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(NotBuilt, match="it fails: not done within 0 s"):
        environments.run_command(command, "it fails", lambda _: None)
