"""Gaussian process regression whose posterior is a set of functions, at any data size."""

from pathgp import kernels, solvers
from pathgp.functions import Function
from pathgp.gp import GP, Posterior, condition
from pathgp.local import Local

__all__ = ["GP", "Function", "Local", "Posterior", "condition", "kernels", "solvers"]
