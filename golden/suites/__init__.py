"""Kinds of goldens, one file each: how it is made, checked and replayed."""
