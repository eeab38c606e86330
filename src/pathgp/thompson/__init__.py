"""Parallel Thompson sampling: maximisation of sample functions, and an ask/tell loop around it."""

from pathgp.thompson.maximise import Search, maximize
from pathgp.thompson.maximise import maximise as maximise  # the British spelling is accepted
from pathgp.thompson.sampler import ThompsonSampler
from pathgp.thompson.space import Categorical, Integer, Real

__all__ = ["Categorical", "Integer", "Real", "Search", "ThompsonSampler", "maximize"]
