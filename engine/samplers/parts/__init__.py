"""What samplers share: the list, its arithmetic, draws, constructors and chains."""
