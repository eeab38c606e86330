import jax.numpy as jnp
import numpy as np
from scipy import stats

from pathgp.analysis import metrics


def test_nll_is_that_of_scipy():
    rng = np.random.default_rng(0)
    mean, variance, y = rng.normal(size=30), rng.uniform(0.1, 2, size=30), rng.normal(size=30)
    expected = -stats.norm(mean, np.sqrt(variance)).logpdf(y).mean()
    np.testing.assert_allclose(metrics.nll(*map(jnp.asarray, (y, mean, variance))), expected, rtol=1e-5)


def test_w2_is_the_distance_of_quantile_functions():
    """W2² = ∫ (F⁻¹ − G⁻¹)² in one dimension."""
    u = (np.arange(200_000) + 0.5) / 200_000
    quantiles = stats.norm(1.0, 0.5).ppf(u) - stats.norm(-0.5, 2.0).ppf(u)
    ours = metrics.w2(jnp.array([1.0]), jnp.array([0.25]), jnp.array([-0.5]), jnp.array([4.0]))
    np.testing.assert_allclose(ours, np.sqrt(np.mean(quantiles**2)), rtol=1e-3)
    assert float(metrics.w2(*2 * (jnp.array([1.0]), jnp.array([0.25])))[0]) == 0.0
