"""LoRA files and control vectors, which are put into a context of llama.cpp."""

import ctypes
from typing import Any

import numpy as np

from lockstep.engine.adapters.control_vector import read_directions
from lockstep.engine.errors import EngineError
from lockstep.harness.adapters.llama_cpp.lib import Library
from lockstep.harness.records import CONTROL_VECTOR, LORA, Settings

FIRST = 1  # first layer in llama.cpp's own tools


def load_loras(lib: Library, model: Any, settings: Settings) -> list[Any]:
    """Return a handle for each LoRA file. The model owns the handles. Raises EngineError with
    llama.cpp's own reason."""
    handles = []
    for path, _ in settings.files_of(LORA):
        with lib.refusals(f"llama.cpp does not load the adapter {path.name}"):
            handle = lib.llama.llama_adapter_lora_init(model, bytes(path))
            if not handle:
                raise EngineError("llama_adapter_lora_init failed")
            handles.append(handle)
    return handles


def put_loras(lib: Library, context: Any, handles: list[Any], settings: Settings) -> None:
    if not handles:
        return
    scales = [scale for _, scale in settings.files_of(LORA)]
    array = (lib.llama.llama_adapter_lora_p_ctypes * len(handles))(*handles)
    given = (ctypes.c_float * len(scales))(*scales)
    status = lib.llama.llama_set_adapters_lora(context, array, len(handles), given)
    if status != 0:
        raise EngineError(f"llama_set_adapters_lora returned {status}")


def put_control_vectors(lib: Library, context: Any, model: Any, settings: Settings) -> None:
    """Read control vectors and set them. llama.cpp's library takes numbers, not files."""
    files = settings.files_of(CONTROL_VECTOR)
    if not files:
        return
    n_layer, width = lib.llama.llama_model_n_layer(model), lib.llama.llama_model_n_embd(model)
    data = np.zeros((n_layer, width), np.float32)
    for layer, vector in read_directions(files, n_layer=n_layer, width=width).items():
        data[layer - 1] = vector
    pointer = data.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    given = (pointer, data.size, width, FIRST, n_layer)
    status = lib.llama.llama_set_adapter_cvec(context, *given)
    if status != 0:
        raise EngineError(f"llama_set_adapter_cvec returned {status}")
