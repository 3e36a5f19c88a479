"""Variables of the environment that libraries read once, when they are loaded."""

ENVIRONMENT = {  # set before llama.cpp is loaded; what the user has set wins
    "GGML_NO_BACKTRACE": "1",  # it runs gdb, and buries the message of an abort
    "OMP_WAIT_POLICY": "passive",  # threads that spin starve each other when workers share CPUs
}
READ_AT_START = ("PYTHON", "OPENBLAS_", "OMP_", "GOMP_", "KMP_", "GGML_", "LLAMA_", "NUMBA_", "LD_")
