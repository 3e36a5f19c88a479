"""Tests, one class each: what it sees, what is right, what known mistakes make of it."""
