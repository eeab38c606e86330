"""Kernels and solvers by name, for those who speak in strings: the estimator and the command line."""

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


def named(known: dict[str, Any], name: str, argument: str) -> Any:
    """What a name stands for; a sentence with all names where it stands for nothing."""
    if name not in known:
        object_too = "" if argument.startswith("--") else ", or an object"
        raise ValueError(f"{argument} must be one of {', '.join(known)}{object_too}, but it is {name!r}.")
    return known[name]
