"""Acid models in practice: sampled by llama.cpp, and used through a server's chat endpoint."""

import json
import subprocess
from pathlib import Path

import pytest

from lockstep.harness.acid.read import read_report
from lockstep.harness.acid.report import report_for
from lockstep.harness.acid.write import write_acid
from lockstep.harness.foreign.building import folder_of, is_added
from lockstep.harness.foreign.engines import ENGINES

llama_cpp = pytest.importorskip("llama_cpp", reason="llama_cpp is missing: nothing was sampled")

REPORT = report_for("llama", "F32")
N = len(REPORT.tests) + 3
ALL = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0}  # no candidate is removed
USUAL = {"top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_penalty": 1.1}
MESSAGES = ("What is the capital of France?", "", "x" * 300)
# asks a server in this process, which does not know Lockstep
PROGRAM = """
import json, sys, urllib.request, xllamacpp
p = xllamacpp.CommonParams()
p.model.path, p.n_ctx, p.n_parallel, p.n_gpu_layers, p.port = sys.argv[1], 1024, 1, 0, 0
p.warmup = False
server = xllamacpp.Server(p)
said = []
for message in json.loads(sys.argv[2]):
    for options in ({}, {"temperature": 0}, {"temperature": 1.0}):
        body = {"messages": [{"role": "user", "content": message}], "max_tokens": 64, **options}
        address = server.listening_address + "/v1/chat/completions"
        headers = {"Content-Type": "application/json"}
        asked = urllib.request.Request(address, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(asked) as reply:
            said.append(json.load(reply)["choices"][0]["message"]["content"])
open(sys.argv[3], "w").write(json.dumps(said))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("acid") / "acid.gguf"
    write_acid(path)
    return path


@pytest.mark.parametrize(("options", "runs"), [(ALL, 100), (USUAL, 20)], ids=["all", "usual"])
def test_llama_cpps_own_sampler_writes_the_report_at_temperature_one(
    model: Path, options: dict[str, float], runs: int
) -> None:
    engine = llama_cpp.Llama(str(model), n_ctx=512, n_threads=1, verbose=False)
    ids = engine.tokenize(REPORT.prompt.encode(), add_bos=True, special=True)
    texts = set()
    for seed in range(1, runs + 1):
        engine.set_seed(seed)
        new = [t for t, _ in zip(engine.generate(ids, temp=1.0, **options), range(N), strict=False)]
        texts.add(engine.detokenize(new).decode())
    engine.close()
    (text,) = texts
    reading = read_report(text)
    assert (reading.code, reading.prompted) == (0, True)


def test_any_chat_message_to_a_server_prints_the_whole_report(model: Path, tmp_path: Path) -> None:
    engine = ENGINES["xllamacpp"]
    if not is_added(engine):
        pytest.skip("xllamacpp is not added (lockstep engine add xllamacpp): no chat was tried")
    said = tmp_path / "said.json"
    python = folder_of(engine) / "bin" / "python"
    arguments = [str(model), json.dumps(MESSAGES), str(said)]
    subprocess.run([str(python), "-c", PROGRAM, *arguments], check=True, timeout=300, env={})
    texts = json.loads(said.read_text())
    assert len(texts) == 3 * len(MESSAGES)
    for text in texts:
        reading = read_report(text)
        assert (reading.code, reading.prompted, reading.complete) == (0, True, True)
        assert "special-tokens ok\n" in text  # a chat parses special tokens
