"""Environment variables that libraries read only once, when they are loaded."""

NO_BACKTRACE = {"GGML_NO_BACKTRACE": "1"}  # ggml runs gdb, and buries the message of an abort
ENVIRONMENT = {  # set before llama.cpp is loaded; what the user has set wins
    **NO_BACKTRACE,
    "OMP_WAIT_POLICY": "passive",  # threads that spin starve each other when workers share CPUs
}
READ_AT_START = ("PYTHON", "OPENBLAS_", "OMP_", "GOMP_", "KMP_", "GGML_", "LLAMA_", "NUMBA_", "LD_")
