"""Pure functions: the order of samples, their shards and their random numbers."""
