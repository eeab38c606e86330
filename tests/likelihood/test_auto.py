import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathgp.likelihood import Auto, Exact, NearestNeighbour, default_gp, fit_hyperparameters


@pytest.mark.parametrize("rows", [29, 30, 31])
def test_the_fit_is_that_of_the_method_for_the_number_of_rows(key, rows):
    X = jax.random.uniform(key, (rows, 1))
    y = jnp.sin(6 * X[:, 0])
    exact, nearest = Exact(steps=5, restarts=0), NearestNeighbour(steps=5, neighbours=8, refinement=None)
    fit = lambda method: fit_hyperparameters(default_gp(X, y), X, y, key=key, method=method)[0]
    found, expected = fit(Auto(exact, nearest, exact_rows=30)), fit(exact if rows <= 30 else nearest)
    np.testing.assert_array_equal(*(jnp.stack(jax.tree.leaves(gp.noise)) for gp in (found, expected)))
    np.testing.assert_array_equal(found.kernel.lengthscale, expected.kernel.lengthscale)


def test_the_choice_reports_its_reason():
    assert Auto(exact_rows=7).choose(8).method == NearestNeighbour()
    assert "8" in Auto(exact_rows=7).choose(8).reason
    with pytest.raises(ValueError, match="exact_rows"):
        Auto(exact_rows=-1)
