"""Schedules of batches and cache operations, for engines with a cache."""
