"""Hyperparameters learned from the data."""

from pathgp.likelihood.base import Method, Trace, default_gp, fit_hyperparameters
from pathgp.likelihood.collapsed import collapsed_bound
from pathgp.likelihood.exact import Exact, Neighbourhoods
from pathgp.likelihood.nearest import NearestNeighbour

__all__ = [
    "Exact",
    "Method",
    "NearestNeighbour",
    "Neighbourhoods",
    "Trace",
    "collapsed_bound",
    "default_gp",
    "fit_hyperparameters",
]
