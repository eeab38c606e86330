"""Solvers of (K + Σ) W = B."""

from pathgp.solvers.auto import Auto
from pathgp.solvers.base import (
    ConvergenceWarning,
    DivergenceError,
    Every,
    Info,
    Iterative,
    Snapshot,
    Solution,
    Solver,
)
from pathgp.solvers.cg import CG
from pathgp.solvers.cholesky import Cholesky
from pathgp.solvers.sap import SAP
from pathgp.solvers.sdd import SDD
from pathgp.solvers.sgd import SGD
from pathgp.solvers.subset import SubsetOfData

__all__ = [
    "CG",
    "SAP",
    "SDD",
    "SGD",
    "Auto",
    "Cholesky",
    "ConvergenceWarning",
    "DivergenceError",
    "Every",
    "Info",
    "Iterative",
    "Snapshot",
    "Solution",
    "Solver",
    "SubsetOfData",
]
