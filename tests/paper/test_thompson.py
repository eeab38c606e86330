import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathgp.solvers import DivergenceError
from pathgp_paper.experiments import fig6_thompson, thompson
from pathgp_paper.experiments.base import Record
from pathgp_paper.experiments.fig6_thompson import EXPERIMENT, LARGE, SMALL, paired_gains, seconds
from pathgp_paper.experiments.thompson import RANDOM, illustrate, optimise, passes_in_step, solver_of

SMALL_PROBLEM = {
    **{"inputs": 2, "noise": 1e-4, "initial": 20, "batch": 6, "steps": 2, "features": 200, "lengthscale": 0.2},
    **{"seed": 1, "search": {"rounds": 1, "candidates": 256, "steps": 10}},
}


def run(method, budget, gain, lengthscale=0.3, seed=0, start=3.0, took=(1.0, 1.0)):
    settings = {"method": method, "budget": budget, "lengthscale": lengthscale, "seed": seed}
    result = {"best": [start, start + gain / 2, start + gain], "seconds": list(took)}
    result |= {"solve_seconds": [0.5, 0.7], "residual": [0.1, 0.2]}
    return Record(f"{method}-{budget}-{lengthscale}-{seed}", settings, result)


def test_a_pass_is_the_unit_of_work():
    N, columns = 1000, 50  # 10⁶ entries of 50 multiply-adds and 50 · 10⁶ multiply-adds are 10⁸
    assert passes_in_step({"name": "CG"}, N, columns) == 1
    assert passes_in_step({"name": "SAP"}, N, columns) == 1
    assert passes_in_step({"name": "SDD", "batch_size": 50}, N, columns) == pytest.approx(0.05)
    # its rows twice, 2 · 50 · 1000 · 100 = 10⁷, and 100 features, 100 · 1000 · (50 + 2 · 50) = 1.5 · 10⁷
    sgd = {"name": "SGD", "batch_size": 50, "num_features": 100}
    assert passes_in_step(sgd, N, columns) == pytest.approx(0.25)
    # 10 · 100 entries, 5 · 10⁴, and 6 · 10 · 100² = 6 · 10⁵
    svgp = {"name": "SVGP", "batch_size": 10, "points": 100}
    assert passes_in_step(svgp, N, columns) == pytest.approx(0.0065)


def test_all_methods_get_the_same_work():
    X, key = jax.random.uniform(jax.random.key(0), (1000, 8)), jax.random.key(1)
    steps = {}
    for method in fig6_thompson.SOLVERS:
        settings = fig6_thompson.of_method("machine", method, SMALL)
        solver = solver_of(settings["solver"], 6.0, X, 100, key)
        steps[method] = solver.passes if method == "SAP" else solver.steps
        assert steps[method] * passes_in_step(settings["solver"], 1000, 101) == pytest.approx(5, rel=0.1)
    assert (steps["CG"], steps["SAP"]) == (5, 5)
    paper = solver_of(fig6_thompson.of_method("paper", "SGD", LARGE)["solver"], None, X, 100, key)
    assert (paper.steps, paper.batch_size, paper.sample_learning_rate) == (75_000, 500, 3e-4)


def test_the_paper_scale_is_the_papers():
    cells = EXPERIMENT.cells("paper")
    assert len(cells) == 1 + 10 * 5 * (5 * 2 + 1)
    cell = next(cell for cell in cells if cell.name == "cg-large-0.1-9").settings
    assert (cell["initial"], cell["batch"], cell["steps"], cell["solver"]["steps"]) == (50_000, 1000, 30, 50)
    assert cell["search"]["learning_rate"] * 0.05 == pytest.approx(0.001)
    assert len({cell.name for cell in EXPERIMENT.cells("machine")}) == len(EXPERIMENT.cells("machine"))


def both(method, budget, *gains, **settings):
    return [run(method, budget, gain, seed=seed, **settings) for seed, gain in enumerate(gains)]


def test_claims_follow_from_the_gains_of_runs_that_both_methods_have():
    records = [*both("SAP", SMALL, 2.5, 1.5), *both("CG", SMALL, 1.4, 1.0), *both(RANDOM, None, 0.1, 0.1)]
    records += [*both("SAP", LARGE, 2.0, 2.0), *both("CG", LARGE, 1.9, 2.1), *both("SVGP", LARGE, 2.0, 2.1)]
    records += [run("SAP", SMALL, 9.0, 0.5), run("CG", SMALL, 9.0, 0.5)]  # of one seed of the two
    assert paired_gains(records, "SAP", "CG", SMALL, 2) == pytest.approx((2.0, 1.2))
    claims = {claim.what: claim for claim in EXPERIMENT.claims(records)}
    small = claims["With the small budget SAP gains at least 1.3 times as much as CG"]
    assert small.measured == pytest.approx(0.6)
    assert small.verdict == "agrees"
    missing = claims["With the small budget SAP gains at least 1.3 times as much as SVGP"]
    assert (missing.verdict, missing.why) == ("not run", "not all 2 seeds were run")
    assert claims["With the large budget SAP gains at least as much as CG"].verdict == "agrees"
    assert claims["With the large budget SAP gains at least as much as SVGP"].verdict == "differs"
    assert claims["With the small budget random search gains less than half of SAP"].measured == pytest.approx(0.05)
    records[2:4] = both("CG", SMALL, 1.6, 1.6)
    claims = {claim.what: claim.verdict for claim in EXPERIMENT.claims(records)}
    assert claims["With the small budget SAP gains at least 1.3 times as much as CG"] == "differs"


def test_a_solve_that_diverges_gains_nothing_more(monkeypatch):
    next_points, calls = thompson.next_points, []

    def diverge(*arguments):
        calls.append(1)
        if len(calls) == 2:
            raise DivergenceError("the residual is not finite")
        return next_points(*arguments)

    monkeypatch.setattr(thompson, "next_points", diverge)
    found = optimise(SMALL_PROBLEM | {"method": RANDOM, "steps": 4})
    assert len(found["best"]) == 5
    assert found["best"][1:] == [found["best"][1]] * 4
    assert len(found["seconds"]) == 1
    assert found["failed"].startswith("step 2: ")
    record = Record("sgd", {"method": "SGD", "budget": SMALL, "seed": 0, "lengthscale": 0.2}, found)
    assert len(seconds([record])) == 5
    assert EXPERIMENT.figure([record]) is not None
    assert EXPERIMENT.tables([record])[1].lines[0][0] == "SGD"


def test_the_table_has_standard_errors_and_the_authors_numbers():
    records = [run("SDD", SMALL, gain, seed=i) for i, gain in enumerate((1.0, 2.0, 3.0))]
    lines = {line[0]: line for line in EXPERIMENT.tables(records)[0].lines}
    assert lines["SDD"] == ["SDD", "2.00 ± 0.58 (3)", "not run", "1.74", "1.80"]  # 1/√3
    assert lines["SAP"][3:] == ["", ""]
    assert EXPERIMENT.tables(records)[1].lines == [["SDD", SMALL, "0.60", "1.00", "1.5e-01"]]


def test_time_is_that_of_the_typical_run():
    runs = [run("CG", SMALL, 1.0, seed=i, took=took) for i, took in enumerate(((50.0, 1.0), (2.0, 1.0), (1.0, 1.5)))]
    np.testing.assert_allclose(seconds(runs), [0, 2, 3])


@pytest.fixture(scope="module")
def runs():
    """Random search, and conjugate gradients until they converge, in two dimensions."""
    cg = {"method": "CG", "passes": None, "solver": {"name": "CG", "steps": 200, "tolerance": 1e-3}}
    return optimise(SMALL_PROBLEM | {"method": RANDOM}), optimise(SMALL_PROBLEM | cg)


def test_methods_share_their_start_and_samples_find_more_than_chance(runs):
    chance, sampled = runs
    assert chance["best"][0] == sampled["best"][0]
    for result in runs:
        assert len(result["best"]) == 3
        assert np.all(np.diff(result["best"]) >= 0)
        assert len(result["seconds"]) == len(result["residual"]) == 2
    assert max(sampled["residual"]) <= 1e-3
    assert sampled["found"] > chance["found"] + 0.5  # the mean of the last batch, in standard deviations of the process


def test_the_figure_and_its_illustration(runs):
    settings = fig6_thompson.ILLUSTRATION
    shown = illustrate(settings)
    assert np.shape(shown["samples"]) == (401, 3)
    assert len(shown["looked"]) == 21  # three rounds of seven
    assert np.all(np.array(shown["end_values"]) >= np.array(shown["start_values"]) - 1e-3)
    grid, top = np.array(shown["samples"]), np.max(shown["end_values"], axis=0)
    assert np.all(top <= grid.max(axis=0) + 0.01 * np.ptp(grid, axis=0))
    starts, values = np.array(shown["starts"]), np.array(shown["start_values"])
    for i in range(3):
        np.testing.assert_allclose(np.interp(starts[:, i], shown["x"], grid[:, i]), values[:, i], atol=0.05)
    records = [Record("illustration", settings, shown), run("CG", SMALL, 1.0), run(RANDOM, None, 0.1)]
    panels = EXPERIMENT.figure(records).axes
    assert len(panels) == 8
    assert [line.get_label() for line in panels[0].lines] == ["CG", RANDOM]
    assert [line.get_label() for line in panels[1].lines] == ["CG"]
    assert len(panels[6].lines) == 3 * 3 + 1
    np.testing.assert_allclose(panels[0].lines[0].get_ydata(), [0, 0.5, 1.0])
    assert jnp.all(jnp.isfinite(jnp.asarray(shown["looked_values"])))
