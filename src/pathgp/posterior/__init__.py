"""The model, the posterior, and `condition`, which leads from one to the other."""

from pathgp.posterior.condition import condition
from pathgp.posterior.gp import GP
from pathgp.posterior.posterior import Posterior
from pathgp.posterior.predict import Predictor

__all__ = ["GP", "Posterior", "Predictor", "condition"]
