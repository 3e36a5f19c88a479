"""Our grammars and llama.cpp's allow the same tokens at every step, except for known
differences."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.known import entries
from lockstep.harness.synth.builtin import BUILTIN_VOCABULARIES
from tests.grammar_figures import measure_grammars
from tests.models import with_metadata

EVERY, ALL = 60, 500  # only some grammars; `python -m tests.grammar_figures 500` reads all
DEATHS = [each for each in entries("sampler") if "does" in each["case"]]


def test_grammars_allow_the_same_tokens() -> None:
    found = measure_grammars(ALL, every=EVERY)
    assert found.grammars == -(-ALL // EVERY)
    assert found.steps > 100
    assert found.mirror == found.unexplained == found.ended == []
    assert found.refused_by_us == found.refused_by_engine == []
    assert found.accidents


ASK = """
import ctypes, json, resource, sys
import numpy as np
from llama_cpp import llama_cpp as L

path, case = sys.argv[1], json.loads(sys.argv[2])
silent = L.llama_log_callback(lambda *_: None)
L.llama_log_set(silent, None)
params = L.llama_model_default_params()
params.vocab_only = True
model = L.llama_model_load_from_file(path.encode(), params)
vocab = L.llama_model_get_vocab(model)
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (2, 2))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
text = case["grammar"].encode()
if "wrapped" in case:
    text = text.replace(b'"a"', b"(" * case["wrapped"] + b'"a"' + b")" * case["wrapped"])
if "pattern" in case:
    patterns = (ctypes.c_char_p * 1)(case["pattern"].encode())
    none = (L.llama_token * 0)()
    sampler = L.llama_sampler_init_grammar_lazy_patterns(vocab, text, b"root", patterns, 1, none, 0)
else:
    sampler = L.llama_sampler_init_grammar(vocab, text, b"root")
if not sampler:
    print(json.dumps("refuses"))
    sys.exit()
for token in case["accepted"] * case.get("times", 1):
    L.llama_sampler_accept(sampler, token)
n = L.llama_vocab_n_tokens(vocab)
rows = np.zeros(n, np.dtype([("id", "<i4"), ("logit", "<f4"), ("p", "<f4")]))
rows["id"] = np.arange(n)
data = rows.ctypes.data_as(L.llama_token_data_p)
array = L.llama_token_data_array(data=data, size=n, selected=-1, sorted=False)
L.llama_sampler_apply(sampler, ctypes.byref(array))
print(json.dumps(np.flatnonzero(np.isfinite(rows["logit"])).tolist()))
"""


@pytest.mark.parametrize("known", DEATHS, ids=lambda known: known["id"])
def test_known_grammar_difference_persists(known: dict[str, Any], tmp_path: Path) -> None:
    case = known["case"]
    model = with_metadata(tmp_path / "vocabulary.gguf", BUILTIN_VOCABULARIES["llama"])
    command = [sys.executable, "-c", ASK, str(model), json.dumps(case)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    does = "dies" if run.returncode else json.loads(run.stdout)
    if isinstance(does, list) and isinstance(case["does"], list):
        assert {*case["does"]} <= {*does}
    else:
        assert does == case["does"], f"take {known['id']} out of harness/known"
