"""The Tanimoto kernel on binary or count fingerprints."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from pathgp import _checks as checks
from pathgp.kernels.base import Kernel
from pathgp.kernels.features import Features
from pathgp.linalg.namespace import AnyArray


class Tanimoto(Kernel):
    """The Tanimoto kernel, variance · Σᵢ min(xᵢ, zᵢ) / Σᵢ max(xᵢ, zᵢ), for vectors of counts.

    On bits it is the Jaccard similarity. Two empty fingerprints have similarity 1. The inputs must be counts, so
    `PathGPRegressor` needs `standardize=False`.

    Parameters
    ----------
    variance
        The variance k(x, x) of every fingerprint.
    max_count
        An upper bound of the counts, 1 for bits. With it, `min(x, z) = Σ_c [x ≥ c][z ≥ c]` is computed as
        `max_count` matrix products, much faster than the elementwise minimum.

    >>> import jax.numpy as jnp
    >>> float(Tanimoto()(jnp.array([[2.0, 0.0, 1.0]]), jnp.array([[1.0, 0.0, 2.0]]))[0, 0])
    0.5
    """

    variance: Float[Array, ""] = eqx.field(converter=partial(checks.as_positive, name="variance"), default=1.0)
    max_count: int | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        if self.max_count is not None:
            checks.require_at_least(self.max_count, 1, "max_count")

    def check_inputs(self, X: Float[Array, "n d"]) -> None:
        """Raise `ValueError` if X has negative entries, which are not counts."""
        if checks.is_concrete(X) and (least := float(np.min(np.asarray(X)))) < 0:
            raise ValueError(
                f"X must be counts for Tanimoto, but it has the entry {least:.3g}: give unscaled counts, with "
                "standardize=False in PathGPRegressor."
            )

    def _overlap(self, X: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
        checks.require_same_inputs(X, Z)
        if self.max_count is None:
            return jnp.sum(jnp.minimum(X[:, None, :], Z[None, :, :]), axis=-1)
        levels = ((c <= X).astype(X.dtype) @ (c <= Z).astype(Z.dtype).T for c in range(1, self.max_count + 1))
        return sum(levels, jnp.zeros((X.shape[0], Z.shape[0]), X.dtype))

    def __call__(self, X: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """Return the matrix k(X, Z)."""
        overlap = self._overlap(X, Z)
        union = jnp.sum(X, axis=1)[:, None] + jnp.sum(Z, axis=1)[None, :] - overlap
        return self.variance * jnp.where(union > 0, overlap / jnp.where(union > 0, union, 1), 1)

    def diag(self, X: Float[Array, "n d"]) -> Float[Array, "n"]:
        """Return the variance, which is the same for every fingerprint."""
        return jnp.full(X.shape[0], self.variance)

    def scaled(self, factor: float | Float[AnyArray, ""]) -> "Tanimoto":
        """Return factor · k, by scaling the variance."""
        return Tanimoto(self.variance * factor, self.max_count)

    def features(self, key: PRNGKeyArray, num: int, dim: int) -> "MinHash":
        """Draw `num` random features, the signs of consistent weighted samples; see `MinHash`."""
        checks.require_at_least(num, 1, "num")
        keys = jax.random.split(key, 4)
        return MinHash(
            jax.random.gamma(keys[0], 2.0, (num, dim)),
            jax.random.gamma(keys[1], 2.0, (num, dim)),
            jax.random.uniform(keys[2], (num, dim)),
            jax.random.bits(keys[3], (num,), jnp.uint32),
            self.variance,
        )


class MinHash(Features):
    """Piecewise constant random features of the Tanimoto kernel, with E φ(x)φ(z) = k(x, z).

    Each feature draws one entry and level of x such that the draws of x and z agree with probability Σ min / Σ max
    (consistent weighted sampling, Ioffe 2010). It then gives the draw a random sign (Tripp et al. 2023).
    """

    r: Float[Array, "m d"]
    c: Float[Array, "m d"]
    beta: Float[Array, "m d"]
    seed: UInt32[Array, "m"]
    variance: Float[Array, ""]

    @property
    def num(self) -> int:
        """The number m of features, one per hash."""
        return self.seed.shape[0]

    @property
    def inputs(self) -> int:
        """The number d of entries of a fingerprint."""
        return self.r.shape[1]

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n m"]:
        """Return ±√(variance/m), computed for one hash at a time."""
        present = X > 0
        log_X = jnp.log(jnp.where(present, X, 1))

        def sign(hash_: tuple) -> Float[Array, "n"]:
            r, c, beta, seed = hash_
            level = jnp.floor(log_X / r + beta)
            log_a = jnp.log(c) - r * (level - beta + 1)
            entry = jnp.argmin(jnp.where(present, log_a, jnp.inf), axis=1)
            level = jnp.take_along_axis(level, entry[:, None], axis=1)[:, 0].astype(int)
            # All empty fingerprints draw entry −1, so that they agree.
            entry = jnp.where(jnp.any(present, axis=1), entry, -1)
            return 1 - 2 * (_mix(_mix(_mix(seed) ^ _bits(entry)) ^ _bits(level)) >> 31).astype(X.dtype)

        signs = jax.lax.map(sign, (self.r, self.c, self.beta, self.seed))
        return signs.T * jnp.sqrt(self.variance / self.num)


def _bits(x: Int[Array, "n"]) -> UInt32[Array, "n"]:
    return jax.lax.bitcast_convert_type(x.astype(jnp.int32), jnp.uint32)


def _mix(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """Mix 32 bits by a bijection in which every bit of x affects every bit of the result (MurmurHash3)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
