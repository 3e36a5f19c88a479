"""Tests, one class each: what it measures, the right answer, the answers of known mistakes."""
