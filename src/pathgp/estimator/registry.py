"""Kernels and solvers by name, for the estimator and the command line."""

from typing import Any

from pathgp import kernels, solvers
from pathgp.solvers.inducing import points as inducing

KERNELS = {
    "rbf": kernels.RBF,
    "matern12": kernels.Matern12,
    "matern32": kernels.Matern32,
    "matern52": kernels.Matern52,
    "rational_quadratic": kernels.RationalQuadratic,
}
"""Stationary kernels, built from a length scale and a variance."""
SOLVERS = {
    "auto": solvers.Auto,
    "cholesky": solvers.Cholesky,
    "cg": solvers.CG,
    "sap": solvers.SAP,
    "sdd": solvers.SDD,
    "sgd": solvers.SGD,
    "subset": solvers.SubsetOfData,
    "inducing": inducing.RandomPoints,
}
"""Solvers with good defaults; "inducing" stands for a choice of points, from which the estimator makes the solver."""


def look_up(known: dict[str, Any], name: str, argument: str) -> Any:
    """Return the entry of that name; raise `ValueError` with all names if there is none."""
    if name not in known:
        # Options of the command line take names only.
        object_too = "" if argument.startswith("--") else ", or an object"
        raise ValueError(f"{argument} must be one of {', '.join(known)}{object_too}, but it is {name!r}.")
    return known[name]
