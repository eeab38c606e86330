"""Benchmarks, each compared with other methods or libraries in the same run."""
