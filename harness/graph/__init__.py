"""llama.cpp's captured graph as a program: recorded once, run whole with our ops in many ways."""
