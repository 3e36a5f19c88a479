"""`lockstep twin`: the same model with every matrix decoded to F32, streamed from file to file.

llama.cpp converts the activations in quantised products. An engine that does not convert them is
right too, so logits may differ by this conversion, which hides small faults. The twin needs no
conversion, so it hides no faults. The twin's values equal the source's values bit for bit (a NaN
stays NaN). Its metadata are equal too, except for `general.file_type`. llama.cpp's own quantize
also rewrites this key, and keeps `general.quantization_version` in an F32 file.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from lockstep.engine.errors import InvalidModel
from lockstep.engine.gguf.file import GgufFile, TensorInfo, Value
from lockstep.engine.gguf.split_files import COUNT, N_TENSORS, NUMBER, open_model
from lockstep.engine.quants.base import WeightFormat
from lockstep.harness.synth.gguf_writer import Tensor, Typed, check_output, write_gguf

CHUNK = 1 << 20  # weights decoded at a time
FILE_TYPE = "general.file_type"
SPLIT = (COUNT, NUMBER, N_TENSORS)
ALL_F32 = 0  # a value of llama_ftype in include/llama.h
KEPT = ("F32", "F64", "I8", "I16", "I32", "I64")  # types for which no product converts activations
Progress = Callable[[str], None]


def write_twin(model: Path, output: Path, progress: Progress = lambda _: None) -> int:
    """Write the twin, and return the number of tensors that were decoded.

    Raises EngineError or OSError, and then leaves no file. Only the header and one chunk of a
    tensor are in memory at a time.
    """
    with open_model(model) as file:
        check_output(output, model)
        formats = {
            name: WeightFormat.member(info.type.name)
            for name, info in file.tensors.items()
            if info.type.name not in KEPT
        }
        if not formats:
            raise InvalidModel(f"{model} has only F32 weights, so it needs no twin")
        write_gguf(
            output,
            metadata_of(file),
            tensors_of(file, formats, progress),
            version=file.version,
            alignment=file.alignment,
        )
        return len(formats)


def metadata_of(file: GgufFile) -> Mapping[str, Typed | Value]:
    """Return the metadata for a model in a single file, even if the source is split."""
    pairs: dict[str, Typed | Value] = {
        key: value for key, value in file.metadata.items() if key not in SPLIT
    }
    if FILE_TYPE in pairs:
        pairs[FILE_TYPE] = (file.metadata[FILE_TYPE].type, ALL_F32)
    return pairs


def tensors_of(
    file: GgufFile, formats: Mapping[str, type[WeightFormat]], progress: Progress
) -> Iterator[Tensor]:
    for number, info in enumerate(file.tensors.values(), 1):
        said = f"tensor {number} of {len(file.tensors)}: {info.name}"
        kind = "F32" if info.name in formats else info.type.name
        data = chunks(file, info, formats.get(info.name), partial(progress, said))
        yield info.name, info.ne, kind, data


def chunks(
    file: GgufFile,
    info: TensorInfo,
    format: type[WeightFormat] | None,
    started: Callable[[], None],
) -> Iterator[bytes]:
    """Yield the bytes of a tensor in the twin. Release the pages of the source after reading,
    because they would fill the memory."""
    started()
    raw = file.raw(info.name)
    step = CHUNK * info.type.bytes // info.type.block
    for start in range(0, len(raw), step):
        part = raw[start : start + step]
        yield part.tobytes() if format is None else format.dequantize(part).tobytes()
    file.release()
