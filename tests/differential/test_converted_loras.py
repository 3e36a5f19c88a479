"""LoRA files converted from PEFT by llama.cpp's convert_lora_to_gguf.py: their effect on a model.

The tests need the environment of `lockstep engine add transformers`, and llama.cpp's source in the
folder LLAMA_CPP_SOURCE.
"""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.batch import Batch
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.asking.environments import interpreter
from lockstep.harness.foreign.building import folder_of, is_added
from lockstep.harness.foreign.engines import ENGINES
from lockstep.harness.records import EXACT, LORA, AdapterFile, Request
from lockstep.harness.runs.run import builtin_model
from lockstep.harness.synth.merged import write_merged
from tests.plans import plan_of, verdicts_of

IDS = [1, 5, 9, 77, 200, 31, 8, 8]
RANK = 5
PEFT = """
import json, os, sys
os.environ["HF_HUB_OFFLINE"] = "1"
import numpy, torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
model, out, options, ids = sys.argv[1], sys.argv[2], *map(json.loads, sys.argv[3:])
folder, name = os.path.split(model)
found = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()
config = found.config.to_dict()
config.pop("quantization_config", None)
plain = type(found)(type(found.config).from_dict(config)).eval()
plain.load_state_dict(found.state_dict())
plain.save_pretrained(out + "/base")
torch.manual_seed(3)
adapted = get_peft_model(plain, LoraConfig(task_type="CAUSAL_LM", **options))
for name, value in adapted.named_parameters():
    if "lora_B" in name or "lora_embedding" in name:
        torch.nn.init.normal_(value, std=0.2)
adapted.save_pretrained(out + "/adapter")
with torch.no_grad():
    numpy.save(out + "/logits.npy", adapted(torch.tensor([ids])).logits[0].numpy())
"""
MODULES = [*(f"{part}_proj" for part in ("q", "k", "v", "o", "gate", "up", "down")), "lm_head"]
OPTIONS = {"r": RANK, "lora_alpha": 12, "target_modules": [*MODULES, "embed_tokens"]}


@pytest.fixture(scope="module")
def python() -> Path:
    engine = ENGINES["transformers"]
    if not is_added(engine):
        pytest.skip("transformers is not added (lockstep engine add transformers): no PEFT file")
    found = interpreter(folder_of(engine))
    if subprocess.run([found, "-c", "import peft"], capture_output=True).returncode:
        pytest.skip("transformers was added without peft: no PEFT file was converted")
    return found


@pytest.fixture(scope="module")
def source() -> Path:
    if not (named := os.environ.get("LLAMA_CPP_SOURCE")):
        pytest.skip("LLAMA_CPP_SOURCE names no llama.cpp source: no PEFT file was converted")
    return Path(named)


def converted(python: Path, source: Path, model: Path, **options: Any) -> tuple[Path, Any]:
    """Return a LoRA file for the model, and PEFT's logits of IDS."""
    out = model.parent
    given = [json.dumps(OPTIONS | options), json.dumps(IDS)]
    subprocess.run([python, "-c", PEFT, model, out, *given], check=True, capture_output=True)
    words = ["--base", out / "base", "--outtype", "f32", "--outfile", out / "lora.gguf"]
    subprocess.run(
        [python, source / "convert_lora_to_gguf.py", *words, out / "adapter"],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(source / "gguf-py")},
    )
    return out / "lora.gguf", np.load(out / "logits.npy")


def off(model: Path, logits: Any, *adapters: AdapterFile) -> float:
    """Return the distance of our engine's logits from these, relative to the largest."""
    engine = Reference(model, replace(EXACT, adapters=adapters))
    found = engine.evaluate(Request(batches=(Batch.of(IDS),))).logits[0]
    engine.close()
    return float(np.abs(found - logits).max() / np.abs(logits).max())


@pytest.mark.parametrize("options", [{}, {"rank_pattern": {"k_proj": 3}}], ids=["", "ranks"])
def test_a_converted_file_adds_what_peft_adds(
    options: dict[str, Any], python: Path, source: Path, tmp_path: Path
) -> None:
    model, merged = builtin_model("f32", tmp_path), tmp_path / "merged.gguf"
    file, logits = converted(python, source, model, **options)
    lora = AdapterFile(kind=LORA, path=str(file))
    assert off(model, logits) > 0.1
    assert off(model, logits, lora) < 1e-5
    write_merged(model, [(file, 1.0)], merged)
    assert off(merged, logits) < 1e-5
    plan = plan_of(model, settings=replace(EXACT, adapters=(lora,)))
    assert {v.status for v in verdicts_of(plan, "logits")} == {"agreed"}


def test_the_converter_drops_use_rslora(python: Path, source: Path, tmp_path: Path) -> None:
    """PEFT's use_rslora divides alpha by the root of the rank, but the file does not state this."""
    model = builtin_model("f32", tmp_path)
    file, logits = converted(python, source, model, use_rslora=True)
    assert off(model, logits, AdapterFile(kind=LORA, path=str(file))) > 0.1
    assert off(model, logits, AdapterFile(kind=LORA, path=str(file), scale=RANK**0.5)) < 1e-5


def test_the_converter_drops_alpha_pattern(python: Path, source: Path, tmp_path: Path) -> None:
    model = builtin_model("f32", tmp_path)
    file, logits = converted(python, source, model, alpha_pattern={"k_proj": 3.0})
    assert off(model, logits, AdapterFile(kind=LORA, path=str(file))) > 0.1
