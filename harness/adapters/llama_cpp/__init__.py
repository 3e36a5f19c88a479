"""llama.cpp as an engine, through ctypes."""
