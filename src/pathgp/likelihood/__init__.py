"""Hyperparameters learned from the data."""

from pathgp.likelihood.base import Method, Trace, default_gp, fit_hyperparameters
from pathgp.likelihood.collapsed import collapsed_bound
from pathgp.likelihood.exact import Exact, Neighbourhoods
from pathgp.likelihood.nearest import NearestNeighbour
from pathgp.likelihood.pathwise import Pathwise
from pathgp.likelihood.priors import Belief, Bounds, LogNormal, Prior

__all__ = [
    "Belief",
    "Bounds",
    "Exact",
    "LogNormal",
    "Method",
    "NearestNeighbour",
    "Neighbourhoods",
    "Pathwise",
    "Prior",
    "Trace",
    "collapsed_bound",
    "default_gp",
    "fit_hyperparameters",
]
