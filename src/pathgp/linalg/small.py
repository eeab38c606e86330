"""Many small positive definite systems, each solved by LAPACK, one after the other.

jaxlib 0.10 splits a batch of factorisations among the threads of its pool by a call that sits on one of them and waits
for the others. Where as many such calls are under way as there are threads, for instance because threads predict from
one model, all of them wait forever. One after the other they take no longer, and wait for nobody.
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
    """H⁻¹B for a positive definite H, NaN where it is not; to be batched by `jax.vmap`.

    A derivative takes one more solve with the same factor, not the derivative of the factor.

    >>> print(jax.vmap(definite_solve)(jnp.array([[[1.0]], [[4.0]]]), jnp.ones((2, 1)))[:, 0])
    [1.   0.25]
    """
    factor = _cholesky(jax.lax.stop_gradient(H))
    return jax.lax.custom_linear_solve(lambda A: H @ A, B, lambda _, b: _cho_solve(factor, b), symmetric=True)
