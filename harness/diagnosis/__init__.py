"""Diagnosis: the known mistake that makes the very answers that an engine gives."""
