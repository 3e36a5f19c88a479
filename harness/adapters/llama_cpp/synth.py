"""The tensors that llama.cpp would read for some metadata. llama.cpp builds the model, and requests
each tensor."""

import ctypes

from lockstep.engine.errors import EngineError
from lockstep.harness.adapters.llama_cpp.lib import GgmlTensor, GgufInitParams, Library, P
from lockstep.harness.adapters.parts import file_summary as summary
from lockstep.harness.records import TensorSummary

FRESH = 32 << 20  # bytes: glibc allocates larger blocks from the system, and these are zero

Fill = ctypes.CFUNCTYPE(None, P, P)  # llama_model_set_tensor_data_t


def name_tensors(lib: Library, metadata: bytes) -> tuple[TensorSummary, ...]:
    """Return the tensors in llama.cpp's order, each once, with offsets of zero. metadata: a GGUF
    file without tensors. Raises EngineError with llama.cpp's own reason."""
    from_buffer = lib.ggml.gguf_init_from_buffer
    from_buffer.restype, from_buffer.argtypes = P, [P, ctypes.c_size_t, GgufInitParams]
    held = ctypes.create_string_buffer(metadata, len(metadata))
    gguf = from_buffer(ctypes.addressof(held), len(metadata), GgufInitParams(True, None))
    if not gguf:
        raise EngineError("llama.cpp does not read the metadata as a GGUF file")
    found: dict[str, TensorSummary] = {}

    def asked(address: int, _: int) -> None:
        """Note a requested tensor. Fill it with zeros, because some models read their weights while
        they load."""
        one = summary_of(lib, address)
        if one.n_bytes <= FRESH:
            ctypes.memset(lib.ggml.ggml_get_data(address), 0, one.n_bytes)
        found.setdefault(one.name, one)

    try:
        build(lib, gguf, Fill(asked))
    finally:
        lib.ggml.gguf_free(gguf)
    return tuple(found.values())


def build(lib: Library, gguf: int, asked: object) -> None:
    llama = lib.llama
    init = llama._lib["llama_model_init_from_user"]
    init.restype, init.argtypes = P, [P, Fill, P, llama.llama_model_params]
    params = llama.llama_model_default_params()
    params.n_gpu_layers = 0
    with lib.refusals("llama.cpp builds no model from the metadata"):
        model = init(gguf, asked, None, params)
        if not model:
            raise EngineError("llama_model_init_from_user failed")
    llama.llama_model_free(model)


def summary_of(lib: Library, address: int) -> TensorSummary:
    tensor = GgmlTensor.from_address(address)
    traits = lib.ggml.ggml_get_type_traits(tensor.type).contents
    return TensorSummary(
        name=tensor.name.decode(),
        ne=summary.shape(tensor.ne),
        type=traits.type_name.decode().upper(),
        offset=0,
        n_bytes=lib.ggml.ggml_nbytes(address),
    )
