"""Re-execution of llama.cpp's own graph, op by op, on its own inputs."""
