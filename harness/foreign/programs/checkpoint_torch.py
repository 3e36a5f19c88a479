"""A Hugging Face checkpoint, read by transformers: checkpoint_torch.py FOLDER.

This program executes nothing in FOLDER. It ignores the checkpoint's own code, and reads weights
only from safetensors files.
"""

import importlib.metadata
import json
import sys
from pathlib import Path

import numpy as np
import torch
from answering import Unsupported, later, serve
from torch_models import LOGITS, Tokenizer, TorchModel
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

SAFE = {"local_files_only": True, "trust_remote_code": False}
OPTIONS = {"dtype": torch.float32, "attn_implementation": "eager", "use_safetensors": True}
MODULES = "modules.json"  # file of sentence-transformers that lists the steps after the model
OWN_MODULES = "sentence_transformers."
HIDDEN = "result_embd"  # name of the values that are pooled


class Checkpoint(TorchModel):
    """A model, and the modules that sentence-transformers applies to its hidden states."""

    def __init__(self, folder):
        config = AutoConfig.from_pretrained(folder, **SAFE)
        causal = {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()} & {*(config.architectures or ())}
        self.behind = modules_behind(folder)
        self.embeds = not causal or self.behind is not None
        load = AutoModel if self.embeds else AutoModelForCausalLM
        super().__init__(load.from_pretrained(folder, **SAFE, **OPTIONS))
        if self.behind is not None:
            self.shows[HIDDEN] = None

    @torch.no_grad()
    def embed(self, question, _):
        arrays = {}
        for i, batch in enumerate(question["batches"]):
            sequences, ids, at = map(
                np.array, (batch["sequences"], batch["tokens"], batch["positions"])
            )
            order = {s: np.flatnonzero(sequences == s) for s in sorted({*batch["sequences"]})}
            found = {}
            for places in order.values():
                self.shown = {} if question.get("trace") else None
                self.add(found, "", self.rows(ids[places], at[places]), places)
                for node, value in (self.shown or {}).items():
                    self.add(found, node, value, places)
            self.shown = None
            for node, parts in found.items():
                arrays[f"step{i}/{node}" if node else f"rows{i}"] = join_parts(parts)
        return {}, arrays

    @staticmethod
    def add(found, node, value, places):
        found.setdefault(node, []).append((places, value))

    def rows(self, ids, positions):
        """Return hidden states: (tokens, width), or one row (1, width) for the whole sequence if
        the model pools."""
        ids, positions = torch.tensor(ids)[None], torch.tensor(positions)[None]
        hidden = self.model(ids, position_ids=positions, use_cache=False).last_hidden_state
        if self.behind is None:
            return hidden[0].numpy()
        self.show(HIDDEN, hidden)
        found = {"token_embeddings": hidden, "attention_mask": torch.ones_like(ids)}
        for module in self.behind:
            found = module(found)
        return found["sentence_embedding"].numpy()


def join_parts(parts):
    """Join the rows in the order of the batch's tokens. If the model pools, join one row for each
    sequence, in the order of the sequences."""
    if any(len(value) != len(places) for places, value in parts):
        return np.concatenate([value for _, value in parts])
    rows = np.concatenate([value for _, value in parts])
    order = np.concatenate([places for places, _ in parts])
    return rows[np.argsort(order)]


def modules_behind(folder):
    """Return the sentence-transformers modules after the model, except for normalisation. Return
    None if the folder has none."""
    path = Path(folder) / MODULES
    if not path.is_file():
        return None
    rows = json.loads(path.read_text())
    for row in rows:
        if not row["type"].startswith(OWN_MODULES):
            raise Unsupported(
                f"{MODULES}: {row['type']} is not a module of sentence-transformers itself"
            )
        if any(path.parent.joinpath(row["path"]).glob("*.bin")):
            raise Unsupported(f"{row['path']} has weights that are not safetensors")
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(
        str(folder),
        device="cpu",
        **SAFE,
        model_kwargs={"use_safetensors": True},
    )
    return [m for m in list(model)[1:] if type(m).__name__ != "Normalize"]


def start(_, settings):
    (folder,) = sys.argv[1:]
    torch.set_num_threads(settings["n_threads"])
    model = Checkpoint(folder)
    answers = {"embed": model.embed}
    if not model.embeds:
        answers = {"greedy": model.greedy, "logits": model.logits}
    load = lambda: Tokenizer(AutoTokenizer.from_pretrained(folder, **SAFE))
    answers |= later(load, "tokenize")
    said = {"engine": "transformers", "version": importlib.metadata.version("transformers")}
    said |= {"build": f"torch {torch.__version__}", "can": [*answers, "trace"]}
    cache = {"type_k": "F32", "type_v": "F32", "flash_attn": False}
    shows = [name for name in model.shows if name != LOGITS or not model.embeds]
    return {**said, "shows": shows, "settings": cache, "text": "utf8"}, answers


serve(start)
