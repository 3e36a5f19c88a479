"""One engine that is asked, in a process or an environment of its own; facts of a model."""
