"""Solution of many small positive definite systems by LAPACK, one after the other.

jaxlib 0.10 splits a batch of factorisations among the threads of its pool, by a call that occupies one thread and
waits for the others. If as many such calls run as there are threads, all of them wait forever; this happens when
several threads predict from one model. One after the other, the factorisations take no longer and cannot deadlock.
"""

import jax
import jax.numpy as jnp
from jax.custom_batching import sequential_vmap
from jaxtyping import Array, Float


@sequential_vmap
def _cholesky(H: Float[Array, "m m"]) -> Float[Array, "m m"]:
    return jnp.linalg.cholesky(H)


@sequential_vmap
def _cho_solve(factor: Float[Array, "m m"], B: Float[Array, "m *s"]) -> Float[Array, "m *s"]:
    return jax.scipy.linalg.cho_solve((factor, True), B)


def definite_solve(H: Float[Array, "m m"], B: Float[Array, "m *s"]) -> Float[Array, "m *s"]:
    """Return H⁻¹B for a positive definite H, and NaN for any other; `jax.vmap` batches it.

    Its derivative is one more solve with the same factor, instead of the derivative of the factorisation.

    >>> print(jax.vmap(definite_solve)(jnp.array([[[1.0]], [[4.0]]]), jnp.ones((2, 1)))[:, 0])
    [1.   0.25]
    """
    # The factor only solves, so no derivative passes through the factorisation.
    factor = _cholesky(jax.lax.stop_gradient(H))
    return jax.lax.custom_linear_solve(lambda A: H @ A, B, lambda _, b: _cho_solve(factor, b), symmetric=True)
