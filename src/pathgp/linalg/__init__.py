"""Arithmetic that knows no Gaussian process: tiles, distances, neighbours, factorisations, precision."""
