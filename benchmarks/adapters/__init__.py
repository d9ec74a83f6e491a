"""Adapters of the loader benchmark; each runs as a script of its peer's environment."""
