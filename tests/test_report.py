"""The tables of the pages are those that the stored figures give."""

import pathlib
import runpy

import pytest

ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.parametrize("page", ["README.md", "docs/benchmarks.md", "docs/local.md", "docs/scaling.md"])
def test_tables_come_from_the_stored_figures(page):
    filled = runpy.run_path(str(ROOT / "benchmarks" / "report.py"))["filled"]
    text = (ROOT / page).read_text()
    assert "<!-- end -->" in text
    assert filled(text) == text


def test_a_changed_figure_is_noticed():
    filled = runpy.run_path(str(ROOT / "benchmarks" / "report.py"))["filled"]
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    assert filled(text.replace("| **`condition(gp, X, y)`** |", "| **`condition(gp, X, y)`** | 0.0", 1)) == text


def test_the_tables_on_paper_are_what_the_model_gives():
    script = runpy.run_path(str(ROOT / "benchmarks" / "scaling.py"))
    text = (ROOT / "docs" / "scaling.md").read_text()
    for name in script["PAPER"]:
        assert script["paper"](name) in text, name
