"""Hyperparameters learned from the data."""

from pathgp.likelihood.auto import Auto
from pathgp.likelihood.base import FittingMethod, Trace, default_gp, fit_hyperparameters
from pathgp.likelihood.collapsed import collapsed_bound
from pathgp.likelihood.exact import Exact, Neighbourhoods
from pathgp.likelihood.nearest import NearestNeighbour
from pathgp.likelihood.pathwise import Pathwise
from pathgp.likelihood.priors import Bounds, LogNormal, Prior

__all__ = [
    "Auto",
    "Bounds",
    "Exact",
    "FittingMethod",
    "LogNormal",
    "NearestNeighbour",
    "Neighbourhoods",
    "Pathwise",
    "Prior",
    "Trace",
    "collapsed_bound",
    "default_gp",
    "fit_hyperparameters",
]
