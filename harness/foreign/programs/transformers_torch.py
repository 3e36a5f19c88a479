"""transformers with torch: from_pretrained loads the GGUF file, and PEFT adds LoRA files."""

import importlib.metadata
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from answering import Unsupported, later, serve
from torch_models import SHOWS, Tokenizer, TorchModel
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.integrations.gguf import dequant
from transformers_samplers import sample


def load(path, loras):
    place = {"pretrained_model_name_or_path": Path(path).parent, "gguf_file": Path(path).name}
    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    model = AutoModelForCausalLM.from_pretrained(**place, **options)
    if loras:
        add_loras(model, path, loras)
    return TorchModel(model)


def add_loras(model, path, loras):
    """Add the LoRA files to the model with PEFT."""
    from peft import PeftModel
    from peft_folder import write_peft_folder

    adapted, names = None, [str(i) for i in range(len(loras))]
    with TemporaryDirectory(prefix="lockstep-") as folder:
        for name, each in zip(names, loras, strict=True):
            place = write_peft_folder(path, each, Path(folder, name))
            if adapted is None:
                adapted = PeftModel.from_pretrained(model, place, name).eval()
            else:
                adapted.load_adapter(place, name)
    adapted.base_model.set_adapter(names, inference_mode=True)


def load_tokenizer(path):
    place = Path(path)
    return Tokenizer(AutoTokenizer.from_pretrained(place.parent, gguf_file=place.name))


def dequantize(question, arrays):
    """Decode with transformers' own loader, which version 5.23 uses for some architectures. For all
    other architectures transformers calls gguf-py."""
    ids = {name: number for number, name in dequant.GGML_NAME.items()}
    if question["type"] not in ids:
        raise Unsupported(f"transformers has no decoder of its own for {question['type']}")
    raw = torch.from_numpy(arrays["raw"].copy())
    return {}, {"weights": dequant.dequantize(raw, ids[question["type"]]).numpy()}


def start(path, settings):
    torch.set_num_threads(settings["n_threads"])
    said = {"engine": "transformers", "version": importlib.metadata.version("transformers")}
    said["build"] = f"torch {torch.__version__}"
    alone = {"dequantize": dequantize, "sample": sample}
    if path is None:
        return said, alone
    answers = {
        **later(lambda: load_tokenizer(path), "tokenize", "detokenize"),
        **later(lambda: load(path, settings["adapters"]), "greedy", "logits"),
        **alone,
    }
    cache = {"type_k": "F32", "type_v": "F32", "flash_attn": False}
    can = [*answers, "trace", *("lora",) * bool(find_spec("peft"))]
    return {**said, "can": can, "shows": SHOWS, "settings": cache, "text": "utf8"}, answers


serve(start)
