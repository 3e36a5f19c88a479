"""Tests for engines that show no tensors: each test puts its question into a model file."""
