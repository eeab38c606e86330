"""Gaussian process regression for data of any size, whose posterior mean and samples are functions."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathgp import kernels, solvers
    from pathgp.estimator import PathGPRegressor
    from pathgp.functions import Function
    from pathgp.posterior import GP, Posterior, condition
    from pathgp.runs.checkpoint import Checkpoint
    from pathgp.solvers.local import Local

__all__ = ["GP", "Checkpoint", "Function", "Local", "PathGPRegressor", "Posterior", "condition", "kernels", "solvers"]

_HOMES = {
    "GP": "posterior",
    "Checkpoint": "runs.checkpoint",
    "Function": "functions",
    "Local": "solvers.local",
    "PathGPRegressor": "estimator",
    "Posterior": "posterior",
    "condition": "posterior",
}
_MODULES = {
    *("analysis", "estimator", "integrations", "kernels", "likelihood", "parallel", "plots", "posterior", "runs"),
    *("solvers", "storage", "system", "thompson"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `pathgp --help` does not wait for JAX."""
    if name in _MODULES:
        return import_module(f"pathgp.{name}")
    if name in _HOMES:
        return getattr(import_module(f"pathgp.{_HOMES[name]}"), name)
    if name == "__version__":
        return version("pathgp")
    raise AttributeError(f"module 'pathgp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
