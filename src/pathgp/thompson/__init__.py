"""Parallel Thompson sampling: maximisation of sample functions, and an ask/tell loop around it."""

from pathgp.thompson.maximise import Search, maximise, maximize
from pathgp.thompson.sampler import Best, ThompsonSampler
from pathgp.thompson.space import Categorical, Integer, Real

__all__ = ["Best", "Categorical", "Integer", "Real", "Search", "ThompsonSampler", "maximise", "maximize"]
