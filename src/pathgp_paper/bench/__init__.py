"""Benchmarks, each beside its peers in one run."""
