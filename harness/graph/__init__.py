"""llama.cpp's captured graph as a program. It is recorded once, and our ops run it in many ways."""
