"""Covariance kernels: stationary ones, Tanimoto, and their sums and products."""

from pathgp.kernels.base import Kernel, Product, Spectrum, Sum
from pathgp.kernels.features import Features
from pathgp.kernels.stationary import RBF, Matern12, Matern32, Matern52, RationalQuadratic, Stationary
from pathgp.kernels.tanimoto import Tanimoto

__all__ = [
    "RBF",
    "Features",
    "Kernel",
    "Matern12",
    "Matern32",
    "Matern52",
    "Product",
    "RationalQuadratic",
    "Spectrum",
    "Stationary",
    "Sum",
    "Tanimoto",
]
