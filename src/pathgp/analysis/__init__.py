"""Metrics of predictions, errors of a solve, and the spectral analysis of the paper."""
