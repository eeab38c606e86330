"""Draws from a multivariate t distribution, the spectral measure of a Matérn kernel, accurate in its tail.

The posterior variance of a rough function is in its high frequencies, which are rare. Of a thousand independent draws,
ten are expected in the top 1 %, but there may be five or fifteen. All posterior samples share these draws, so the
variance of all samples has this error. Two measures reduce it. Half of the frequencies come from a heavier tail and
get smaller weights (importance sampling with the balance heuristic; Veach and Guibas, 1995). The radii are stratified:
one from each of as many intervals of equal probability as there are draws.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, PRNGKeyArray
from scipy import special

HEAVIER = 1 / 3
"""The heavier tail has √(degrees · HEAVIER) degrees of freedom: 1 for Matérn-3/2, which has 3."""


def student_spectrum(
    key: PRNGKeyArray, num: int, dim: int, degrees: int
) -> tuple[Float[Array, "p d"], Float[Array, "p"]]:
    """Return frequencies, and weights with sum 1, that represent N(0, I) √(degrees/χ²).

    χ² has `degrees` degrees of freedom.
    """
    key, heavy_key = jax.random.split(key)
    heavy, rest = (HEAVIER * degrees) ** 0.5, num // 2
    frequencies = jnp.concatenate(
        [_stratified(key, num - rest, dim, degrees), _stratified(heavy_key, rest, dim, heavy)]
    )
    r2 = jnp.sum(frequencies**2, axis=1)
    ratio = jnp.exp(_log_density(r2, dim, heavy) - _log_density(r2, dim, degrees))
    # The balance heuristic: target density over that of the mixture from which the frequencies are drawn.
    weights = 1 / ((num - rest) / num + rest / num * ratio)
    return frequencies, weights / jnp.sum(weights)


def _stratified(key: PRNGKeyArray, num: int, dim: int, degrees: float) -> Float[Array, "p d"]:
    """Draw random directions, with the i-th radius from the i-th of `num` intervals of equal probability."""
    direction_key, radius_key = jax.random.split(key)
    # The limits keep the logit finite in the first and the last interval.
    below = jnp.arange(num) + jax.random.uniform(radius_key, (num,), minval=1e-6, maxval=1 - 1e-6)
    log_radius = jnp.interp(jnp.log(below) - jnp.log(num - below), *_log_radii(dim, degrees))
    directions = jax.random.normal(direction_key, (num, dim))
    return directions / jnp.linalg.norm(directions, axis=1, keepdims=True) * jnp.exp(log_radius)[:, None]


def _log_radii(dim: int, degrees: float) -> tuple[Float64[np.ndarray, "k"], Float64[np.ndarray, "k"]]:
    """Return a table of log r against the logit of its cumulative probability, for linear interpolation.

    The function is nearly linear in both tails. r² = degrees · B/(1 − B), where B has a beta distribution; B and 1 − B
    are computed separately, without cancellation.
    """
    logits = np.linspace(-30, 30, 3001)
    B = special.betaincinv(dim / 2, degrees / 2, special.expit(logits))
    rest = special.betaincinv(degrees / 2, dim / 2, special.expit(-logits))
    return logits, (np.log(degrees) + np.log(B) - np.log(rest)) / 2


def _log_density(r2: Float[Array, "p"], dim: int, degrees: float) -> Float[Array, "p"]:
    """Return the log density of the multivariate t, up to terms that do not depend on its degrees of freedom."""
    constant = special.gammaln((degrees + dim) / 2) - special.gammaln(degrees / 2) - dim / 2 * np.log(degrees)
    return constant - (degrees + dim) / 2 * jnp.log1p(r2 / degrees)
