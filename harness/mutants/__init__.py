"""Engines that are wrong in one known way, one file each. The harness must catch and locate all."""
