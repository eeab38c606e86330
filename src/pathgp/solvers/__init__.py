"""Solvers of the linear system (K + Σ) W = B, one class per method."""

from pathgp.runs.run import Observer, Run, Snapshot
from pathgp.solvers.auto import Auto
from pathgp.solvers.base import (
    AccuracyWarning,
    ConvergenceWarning,
    DivergenceError,
    HandOverWarning,
    Info,
    Solution,
    Solver,
)
from pathgp.solvers.cg import CG
from pathgp.solvers.cholesky import Cholesky
from pathgp.solvers.inducing.base import InducingCholesky
from pathgp.solvers.inducing.cg import InducingCG
from pathgp.solvers.inducing.sgd import InducingSGD
from pathgp.solvers.inducing.sgpr import SGPR
from pathgp.solvers.inducing.svgp import SVGP
from pathgp.solvers.loop import Iterative
from pathgp.solvers.sap import SAP
from pathgp.solvers.sdd import SDD
from pathgp.solvers.sgd import SGD
from pathgp.solvers.subset import SubsetOfData

__all__ = [
    "CG",
    "SAP",
    "SDD",
    "SGD",
    "SGPR",
    "SVGP",
    "AccuracyWarning",
    "Auto",
    "Cholesky",
    "ConvergenceWarning",
    "DivergenceError",
    "HandOverWarning",
    "InducingCG",
    "InducingCholesky",
    "InducingSGD",
    "Info",
    "Iterative",
    "Observer",
    "Run",
    "Snapshot",
    "Solution",
    "Solver",
    "SubsetOfData",
]
