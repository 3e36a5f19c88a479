"""`fuzz states`: state files of llama.cpp, whole and damaged, read by ours and by llama.cpp."""
