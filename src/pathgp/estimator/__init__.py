"""The scikit-learn estimator."""

from pathgp.estimator.regressor import PathGPRegressor

__all__ = ["PathGPRegressor"]
