"""Gaussian process regression whose posterior is a set of functions, at any data size."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathgp import kernels, solvers
    from pathgp.checkpoint import Checkpoint
    from pathgp.estimator import PathGPRegressor
    from pathgp.functions import Function
    from pathgp.gp import Posterior, condition
    from pathgp.local import Local
    from pathgp.problem import GP

__all__ = ["GP", "Checkpoint", "Function", "Local", "PathGPRegressor", "Posterior", "condition", "kernels", "solvers"]

_HOMES = {
    "GP": "problem",
    "Checkpoint": "checkpoint",
    "Function": "functions",
    "Local": "local",
    "PathGPRegressor": "estimator",
    "Posterior": "gp",
    "condition": "gp",
}
_MODULES = {
    *("cost", "datasets", "distributed", "inducing", "integrations", "kernels", "likelihood", "metrics", "plots"),
    *("solvers", "spectral", "storage", "thompson"),
}


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first used: `pathgp --help` does not wait for JAX."""
    if name in _MODULES:
        return import_module(f"pathgp.{name}")
    if name in _HOMES:
        return getattr(import_module(f"pathgp.{_HOMES[name]}"), name)
    if name == "__version__":
        return version("pathgp")
    raise AttributeError(f"module 'pathgp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
