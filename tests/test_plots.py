import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.padding import with_padding

pytest.importorskip("matplotlib")

from pathgp import GP, condition, plots
from pathgp.kernels import RBF
from pathgp.solvers import Cholesky

RNG = np.random.default_rng(0)


def test_intervals_of_a_true_model_are_calibrated_and_wide_ones_are_not():
    deviation = np.repeat([0.1, 3.0], 2000)
    y = deviation * RNG.normal(size=4000)
    for factor, worst in ((1.0, 0.03), (3.0, None)):  # chance alone gives up to 2.5 standard errors of 0.008
        axes = plots.new_figure().subplots()
        plots.calibration_panel(axes, y, np.zeros(4000), factor * deviation)
        nominal, observed = next(line for line in axes.lines if line.get_label() == "observed").get_data()
        if worst is not None:
            np.testing.assert_allclose(observed, nominal, atol=worst)
        at_half = observed[np.argmin(np.abs(nominal - 0.5))]
        # P(|z| ≤ 0.6745 · 3) = 0.957
        assert at_half == pytest.approx(0.5 if factor == 1 else 0.957, abs=0.03)
        assert axes.get_title() == "calibration on 4,000 rows"


def test_the_most_relevant_inputs_come_first_and_at_most_twenty_are_drawn():
    axes = plots.new_figure().subplots()
    plots.relevance_panel(axes, np.array([0.5, 3.0, 1.0]), ["a", "b", "c"], "price in $ or $100")
    assert axes.get_title() == r"what price in \$ or \$100 depends on"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["b", "c", "a"]
    assert [bar.get_width() for bar in axes.patches] == [3.0, 1.0, 0.5]
    axes = plots.new_figure().subplots()
    plots.relevance_panel(
        axes, np.arange(30.0), [f"a long name of a column, number {i:02}" for i in range(30)], "price"
    )
    assert len(axes.patches) == 20
    assert axes.get_yticklabels()[0].get_text().endswith("29")
    assert "the first 20 of 30" in axes.get_title()


def test_predictions_are_drawn_with_two_standard_deviations():
    axes = plots.new_figure().subplots()
    plots.predicted_panel(axes, np.array([1.0, 2.0]), np.array([1.0, 5.0]), np.array([0.5, 1.0]), "price")
    bars = axes.collections[0].get_segments()
    np.testing.assert_allclose(bars, [[[1, 0], [1, 2]], [[2, 3], [2, 7]]])
    assert axes.get_title() == "price: predicted against true, RMSE 2.121"  # √(9/2)


def test_of_many_rows_the_same_ones_are_drawn_and_the_label_says_so():
    axes = plots.new_figure().subplots()
    y = np.arange(5000.0)
    plots.predicted_panel(axes, y, y, np.ones(5000), "price")
    assert len(axes.collections[0].get_segments()) == 1000
    assert "1,000 of 5,000 rows" in axes.get_legend().get_texts()[-1].get_text()
    np.testing.assert_array_equal(plots.subsample_rows(5000, 10)[0], plots.subsample_rows(5000, 10)[0])


@pytest.mark.parametrize("with_data", [True, False])
def test_lines_and_maps_are_files_that_a_viewer_opens(tmp_path, with_data):
    x = np.linspace(0, 1, 30)
    figure = plots.new_figure()
    axes = figure.subplots()
    data = (x, x**2) if with_data else None
    plots.line_panel(axes, x, x**2, np.full(30, 0.1), np.column_stack([x**2, x**2 + 0.1]), data, ("hour", "rides"))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("hour", "rides")
    band = axes.collections[0].get_paths()[0].get_extents()
    assert (band.ymin, band.ymax) == pytest.approx((-0.2, 1.2))
    plots.save_figure(figure, tmp_path / "line.png")
    assert (tmp_path / "line.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"

    figure = plots.new_figure(11, 4.5)
    grid = (np.linspace(0, 1, 6), np.linspace(2, 3, 5))
    mean = grid[0][None, :] * grid[1][:, None]
    points = np.array([[0.5, 2.5]]) if with_data else None
    plots.map_panels(figure, grid, mean, np.ones((5, 6)), points, ("a", "b", "rides"))
    shown = figure.axes[0].collections[0].get_array()
    assert shown.reshape(5, 6)[4, 5] == pytest.approx(3.0)  # a = 1, b = 3: the last column and the last row
    assert [axes.get_title() for axes in figure.axes[:2]] == ["mean of rides", "sd of a new row of rides"]
    plots.save_figure(figure, tmp_path / "map.pdf")
    assert (tmp_path / "map.pdf").read_bytes()[:5] == b"%PDF-"


def test_convergence_shows_the_loss_and_each_residual():
    figure = plots.new_figure()
    plots.convergence_panels(figure, [3.0, 2.0, 1.0], np.array([0.5, 0.01, 0.02]), 0.1, "SAP")
    left, right = figure.axes
    np.testing.assert_array_equal(left.lines[0].get_ydata(), [3, 2, 1])
    np.testing.assert_array_equal(right.lines[0].get_ydata(), [0.01, 0.02])
    np.testing.assert_array_equal(right.lines[1].get_ydata(), [0.5])
    assert right.get_title() == "where SAP ended"
    figure = plots.new_figure()
    plots.convergence_panels(figure, [], np.zeros(3), 0.0, "Cholesky")
    assert figure.axes[0].texts[0].get_text() == "hyperparameters were fixed"


def test_rows_of_padding_are_not_drawn():
    X = np.linspace(-1, 1, 60)[:, None]
    key = jax.random.key(0)
    posterior = condition(GP(RBF(0.5), 0.1), X, 2 + X[:, 0], solver=Cholesky(), num_samples=2, num_features=8, key=key)
    left, right = plots.new_figure().subplots(1, 2)
    padded, x = with_padding(posterior, 3), jnp.linspace(-1, 1, 8)[:, None]
    plots.posterior_panel(left, padded, x)
    np.testing.assert_allclose(left.lines[0].get_xydata(), np.column_stack([X, 2 + X])[::5], atol=1e-6)
    plots.regions_panel(right, padded, x)
    np.testing.assert_allclose(right.lines[0].get_xdata(), X[:, 0], atol=1e-6)
