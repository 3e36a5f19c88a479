"""The format: bytes -> header, metadata, tensor table; strict about every rule of it."""
