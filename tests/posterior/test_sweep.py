"""Random problems against dense float64 linear algebra: within a tenth of a standard deviation, or with a warning."""

import pytest

from tests.support.sweep import SOLVERS, draw_case, judge

FEW = {"Auto": [3, 7], "Cholesky": [0], "SAP": [1], "CG": [2], "SDD": [4]}
"""Cases of the seeds for which a solver is quick."""

SETTLED = 0.01
"""Errors below this many standard deviations are all alike to a user, and are not told apart."""


def check(case, **options):
    verdict = judge(case, **options)
    assert verdict.is_good or verdict.warned, f"silently wrong: {case}, {verdict}"
    if not verdict.failure:
        told, true = max(verdict.mean_error, SETTLED), max(verdict.rms, SETTLED)
        assert told > true / 10, f"the estimated error is too small: {case}, {verdict}"
    return verdict


@pytest.mark.parametrize(("solver", "seed"), [(solver, seed) for solver, seeds in FEW.items() for seed in seeds])
def test_a_posterior_is_right_or_says_by_how_much_it_is_not(solver, seed):
    check(draw_case(seed, solver, most_rows=1500), num_samples=16)


@pytest.mark.slow
@pytest.mark.parametrize("solver", [None, *SOLVERS])
def test_three_hundred_random_problems(solver):
    """The estimate of the error is within a factor of five of the truth in nine of ten cases."""
    number = 180 if solver is None else 20
    verdicts = [check(draw_case(seed, solver)) for seed in range(1000, 1000 + number)]
    ratios = [max(v.mean_error, SETTLED) / max(v.rms, SETTLED) for v in verdicts if not v.failure]
    near = sum(0.2 <= ratio <= 5 for ratio in ratios)
    assert near >= 0.9 * len(ratios)
    assert sum(bool(v.failure) for v in verdicts) <= 0.05 * number
