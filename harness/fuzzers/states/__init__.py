"""`fuzz states`: whole and damaged state files of llama.cpp, read by our reader and by
llama.cpp."""
