"""Environment variables that libraries read only once, when they are loaded."""

# otherwise ggml runs gdb, whose output hides the message of an abort
NO_BACKTRACE = {"GGML_NO_BACKTRACE": "1"}
ENVIRONMENT = {  # set before llama.cpp is loaded; the user's own values win
    **NO_BACKTRACE,
    # spinning threads slow each other down if workers share processors
    "OMP_WAIT_POLICY": "passive",
}
READ_AT_START = ("PYTHON", "OPENBLAS_", "OMP_", "GOMP_", "KMP_", "GGML_", "LLAMA_", "NUMBA_", "LD_")
