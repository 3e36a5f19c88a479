"""Tests, one class each: what a test measures, the right answer, and the answers for known
mistakes."""
