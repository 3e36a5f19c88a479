"""Tests of `bisect` with models of every architecture. One element of a model is changed, and
`bisect` must name the changed tensor."""
