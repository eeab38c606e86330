"""Judging predictions and solves: metrics, and the paper's spectral analysis."""
