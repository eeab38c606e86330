"""Draws from a multivariate t distribution, the spectral measure of a Matérn kernel, that take its tail seriously.

What the data leave of a rough function is in its high frequencies: they are few in number, and a thousand independent
draws have ten of a share of one per cent, or five, or fifteen. All posterior samples share these draws, so the variance
of all of them is off by that much. Hence half of the frequencies come from a heavier tail and count for less
(importance sampling with the balance heuristic; Veach and Guibas, 1995), and radii are stratified: one from each of as
many parts of equal probability as there are draws.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, PRNGKeyArray
from scipy import special

HEAVIER = 1 / 3
"""The degrees of freedom of the heavier tail, of 3 those of Matérn-3/2: 1. As √(degrees/3) for the others."""


def student_spectrum(
    key: PRNGKeyArray, num: int, dim: int, degrees: int
) -> tuple[Float[Array, "p d"], Float[Array, "p"]]:
    """Frequencies, and weights with the sum one, that stand for N(0, I) √(degrees/χ²) with `degrees` of freedom."""
    key, heavy_key = jax.random.split(key)
    heavy, rest = (HEAVIER * degrees) ** 0.5, num // 2
    frequencies = jnp.concatenate(
        [_stratified(key, num - rest, dim, degrees), _stratified(heavy_key, rest, dim, heavy)]
    )
    r2 = jnp.sum(frequencies**2, axis=1)
    ratio = jnp.exp(_log_density(r2, dim, heavy) - _log_density(r2, dim, degrees))
    weights = 1 / ((num - rest) / num + rest / num * ratio)
    return frequencies, weights / jnp.sum(weights)


def _stratified(key: PRNGKeyArray, num: int, dim: int, degrees: float) -> Float[Array, "p d"]:
    """Directions at random, and the radius of the i-th from the i-th of `num` parts of equal probability."""
    direction_key, radius_key = jax.random.split(key)
    below = jnp.arange(num) + jax.random.uniform(radius_key, (num,), minval=1e-6, maxval=1 - 1e-6)
    log_radius = jnp.interp(jnp.log(below) - jnp.log(num - below), *_log_radii(dim, degrees))
    directions = jax.random.normal(direction_key, (num, dim))
    return directions / jnp.linalg.norm(directions, axis=1, keepdims=True) * jnp.exp(log_radius)[:, None]


def _log_radii(dim: int, degrees: float) -> tuple[Float64[np.ndarray, "k"], Float64[np.ndarray, "k"]]:
    """log r as a function of the logit of its cumulative probability: nearly linear in both tails, so it interpolates.

    r² = degrees · B/(1 − B), where B has a beta distribution; both B and 1 − B are computed without cancellation.
    """
    logits = np.linspace(-30, 30, 3001)
    B = special.betaincinv(dim / 2, degrees / 2, special.expit(logits))
    rest = special.betaincinv(degrees / 2, dim / 2, special.expit(-logits))
    return logits, (np.log(degrees) + np.log(B) - np.log(rest)) / 2


def _log_density(r2: Float[Array, "p"], dim: int, degrees: float) -> Float[Array, "p"]:
    """Of the multivariate t, up to what does not depend on its degrees of freedom."""
    constant = special.gammaln((degrees + dim) / 2) - special.gammaln(degrees / 2) - dim / 2 * np.log(degrees)
    return constant - (degrees + dim) / 2 * jnp.log1p(r2 / degrees)
