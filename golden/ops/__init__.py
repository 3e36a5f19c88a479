"""Vectors of single operations: inputs, right results, and the judgement of an answer."""
