"""Gaussian process regression whose posterior is a set of functions, at any data size."""

from typing import TYPE_CHECKING, Any

from pathgp import kernels, solvers
from pathgp.functions import Function
from pathgp.gp import GP, Posterior, condition
from pathgp.local import Local

if TYPE_CHECKING:
    from pathgp.estimator import PathGPRegressor

__all__ = ["GP", "Function", "Local", "PathGPRegressor", "Posterior", "condition", "kernels", "solvers"]


def __getattr__(name: str) -> Any:
    """The estimator when it is asked for: scikit-learn takes longer to import than the rest."""
    if name == "PathGPRegressor":
        from pathgp.estimator import PathGPRegressor

        return PathGPRegressor
    raise AttributeError(f"module 'pathgp' has no attribute {name!r}")
