"""Benchmarks: ratios in one run, beside peers that anyone can repeat."""
