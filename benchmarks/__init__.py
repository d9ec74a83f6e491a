"""Benchmarks: they verify before they time, and report ratios within one run."""
