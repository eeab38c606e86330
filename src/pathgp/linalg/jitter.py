"""Jitter: what is added to the diagonal of a positive semi-definite matrix that rounding makes singular.

There is one policy. The jitter starts at the least noise that the dtype resolves, `least_noise`. While the matrix
cannot be factorised with it, it is raised fourfold, until it reaches a limit.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pathgp.linalg.blocks import inverse_factor

T = TypeVar("T")

RAISE = 4.0
"""Factor by which the jitter is raised."""
LARGEST_SHARE = 0.1
"""Limit of the jitter of K_zz, as a share of the mean of its diagonal: more would change the model."""
DAMPING_RAISES = 9
"""Raises of a damping, which has no other limit because later steps remove the error of a damped one."""


def least_noise(K: Any, dtype: Any = None) -> Any:
    """Return the least noise variance that a dtype, by default that of K, resolves: 2ε maxᵢ Σⱼ |Kᵢⱼ|.

    The largest row sum bounds the largest eigenvalue, and ε times that is its rounding error.

    >>> bool(least_noise(np.ones((5, 5))) == 10 * np.finfo(np.float64).eps)
    True
    """
    return least_noise_of_rows(abs(K).sum(axis=1), dtype)


def least_noise_of_rows(row_sums: Any, dtype: Any = None) -> Any:
    """Return `least_noise` of a matrix from the sums of the absolute values of its rows."""
    return 2 * float(np.finfo(row_sums.dtype if dtype is None else dtype).eps) * row_sums.max()


def raise_jitter(factorise: Callable[[float], T], start: float, limit: float) -> tuple[float, T]:
    """Return the first jitter of the policy at which `factorise` raises no `ValueError`, and its result.

    Raises `ValueError` if there is none up to the limit.
    """
    jitter = start
    while True:
        try:
            return jitter, factorise(jitter)
        except ValueError as error:
            if not jitter < limit:
                raise ValueError(
                    f"a kernel matrix is not positive definite to working precision, even with {jitter:.0e} added to "
                    "its diagonal: choose fewer points, or points that lie further apart."
                ) from error
            jitter *= RAISE


def raise_traced_jitter(
    matrix: Callable[[Float[Array, ""]], Float[Array, "b b"]], start: Float[Array, ""], limit: Float[Array, ""]
) -> tuple[Float[Array, ""], Float[Array, "b b"]]:
    """Return the first jitter δ of the policy for which LLᵀ = matrix(δ) is accurate, and L⁻¹; also inside `jax.jit`.

    The start is too small where rows close together occur with outlying rows, which round K by more, and the
    factorisation adds rounding of its own. For a positive semi-definite K, diag((K + δI)⁻¹) ≤ 1/δ. So a factor is
    accurate if the diagonal of the inverse L⁻ᵀL⁻¹ is at most 2/δ, where the factor of two allows for its rounding. If
    there is none up to the limit, the last result is returned.
    """

    def is_inaccurate(state: tuple[Array, Array]) -> Array:
        delta, factor = state
        # Negated, so that NaN is inaccurate.
        return (delta < limit) & ~(jnp.max(jnp.sum(factor**2, axis=0)) <= 2 / delta)

    def raised(state: tuple[Array, Array]) -> tuple[Array, Array]:
        delta = RAISE * state[0]
        return delta, inverse_factor(matrix(delta))

    none = jnp.full_like(jax.eval_shape(matrix, start), jnp.nan)
    return jax.lax.while_loop(is_inaccurate, raised, (start / RAISE, none))


def damped_inverse_factor(K: Float[Array, "b b"], noise: Float[Array, "b"]) -> Float[Array, "b b"]:
    """Return L⁻¹ with LLᵀ = K + diag(max(noise, δ)), where the damping δ is a jitter."""
    start = least_noise(K)
    damped = lambda delta: K + jnp.diag(jnp.maximum(noise, delta))
    return raise_traced_jitter(damped, start, RAISE**DAMPING_RAISES * start)[1]
