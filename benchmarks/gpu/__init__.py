"""Benchmarks on a GPU: products, the step and hashing, each beside a named peer in one run."""
