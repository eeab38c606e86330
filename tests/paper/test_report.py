"""The tables of the pages are those that the stored figures give."""

import pathlib

import numpy as np
import pytest

from pathgp_paper.bench import scaling
from pathgp_paper.bench.report import filled

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [f"docs/{name}.md" for name in ("benchmarks", "choosing", "local", "reproduction", "scaling")]


@pytest.mark.parametrize("page", ["README.md", *PAGES])
def test_tables_come_from_the_stored_figures(page):
    text = (ROOT / page).read_text()
    assert "<!-- end -->" in text
    assert filled(text) == text


def test_a_changed_figure_is_noticed():
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    assert filled(text.replace("| **`condition(gp, X, y)`** |", "| **`condition(gp, X, y)`** | 0.0", 1)) == text


def test_the_functions_that_are_optimised_have_their_known_minima():
    problems = pytest.importorskip("pathgp_paper.bench.optimise").PROBLEMS
    hartmann = [0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573]
    for name, x in (("Hartmann-6", hartmann), ("Ackley-10", np.zeros(10)), ("Levy-10", np.ones(10))):
        problem = problems[name]
        x = np.array([x])
        assert problem.call(x)[0] == pytest.approx(problem.least, abs=1e-5), name
        assert np.all(problem.call(x + 0.1 * np.eye(x.shape[1])) > problem.least), name
        low, high = np.array(problem.bounds).T
        assert np.all((low < x) & (x < high)), name


def test_the_tables_on_paper_are_what_the_model_gives():
    text = (ROOT / "docs" / "scaling.md").read_text()
    for name in scaling.PAPER:
        assert scaling.paper(name) in text, name
