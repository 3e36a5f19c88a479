"""The GGUF format: readers of header, metadata and tensor table that check every rule."""
