"""Numerical routines independent of Gaussian processes: tiles, distances, neighbours, factors, precision."""
