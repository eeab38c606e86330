"""Solvers whose weights belong to M inducing points, and functions that choose the points."""

from pathgp.solvers.inducing.base import Inducing, InducingCholesky
from pathgp.solvers.inducing.cg import InducingCG
from pathgp.solvers.inducing.points import RandomPoints, eliminate, greedy, k_means, random_subset
from pathgp.solvers.inducing.sgd import InducingSGD
from pathgp.solvers.inducing.sgpr import SGPR
from pathgp.solvers.inducing.svgp import SVGP
from pathgp.solvers.variational import Variational

__all__ = [
    "SGPR",
    "SVGP",
    "Inducing",
    "InducingCG",
    "InducingCholesky",
    "InducingSGD",
    "RandomPoints",
    "Variational",
    "eliminate",
    "greedy",
    "k_means",
    "random_subset",
]
