"""The scikit-learn estimator `PathGPRegressor`."""

from pathgp.estimator.regressor import PathGPRegressor

__all__ = ["PathGPRegressor"]
