"""Parallel Thompson sampling: maxima of sample functions, and the ask/tell loop around them."""

from pathgp.thompson.maximise import Search, maximise
from pathgp.thompson.sampler import Best, ThompsonSampler
from pathgp.thompson.space import Categorical, Integer, Real

__all__ = ["Best", "Categorical", "Integer", "Real", "Search", "ThompsonSampler", "maximise"]
