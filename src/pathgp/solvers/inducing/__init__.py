"""Solvers whose weights belong to M inducing points, and functions that choose the points."""

from pathgp.solvers.inducing.points import RandomPoints, eliminate, greedy, k_means, random_subset

__all__ = ["RandomPoints", "eliminate", "greedy", "k_means", "random_subset"]
