"""Squared Euclidean distances, accurate to their own rounding error; kernels compute them only here."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.spatial.distance import cdist

from pathgp import _checks as checks
from pathgp.linalg.namespace import AnyArray

FEW_INPUTS = 10
"""Up to this many inputs, differences cost about as much as a matrix product (`pathgp bench kernel --inputs D`)."""

ROUNDINGS = 4
"""Squared distances below this many ulps of ‖x‖² + ‖z‖² are rounding of the matrix product and are set to 0."""


def squared_distance(X: Float[AnyArray, "n d"], Z: Float[AnyArray, "m d"]) -> Float[AnyArray, "n m"]:
    """Return ‖x − z‖² for every pair of rows, to the precision of the points.

    Up to `FEW_INPUTS` inputs, differences are formed input by input, which does not cancel. For more inputs it is one
    matrix product of the extended vectors (−2x, ‖x‖², 1) and (z, 1, ‖z‖²). This loses ε(‖x‖² + ‖z‖²) where x and z
    are close, which with ARD length scales reaches 3·10⁴ε, more than a small noise variance. The product of float32
    points is therefore computed in float64. For float64 points, differences are formed for the `FEW_INPUTS` widest
    inputs, which make up nearly all of ‖x‖², and the product covers the others. For arrays of NumPy, all differences
    are formed.

    >>> X = jnp.full((1, 20), 1000.0)
    >>> print(squared_distance(X, X + 0.25)[0, 0])
    1.25
    """
    checks.require_same_inputs(X, Z)
    if isinstance(X, np.ndarray):
        return cdist(X, Z, "sqeuclidean")
    if X.shape[1] <= FEW_INPUTS:
        return _by_differences(X, Z)
    if X.dtype != jnp.float64:
        return _by_product(X, Z)
    order = jnp.argsort(-jax.lax.stop_gradient(jnp.max(Z, axis=0) - jnp.min(Z, axis=0)))
    wide, narrow = order[:FEW_INPUTS], order[FEW_INPUTS:]
    return _by_differences(X[:, wide], Z[:, wide]) + _by_product(X[:, narrow], Z[:, narrow])


def _by_differences(X: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
    # A plain transpose would be fused into the loop over pairs, which would then read Z with strides and be five times
    # slower. A product with the identity is a transpose that is not fused.
    inputs = jnp.matmul(jnp.eye(Z.shape[1], dtype=Z.dtype), Z.T, precision="highest")
    squares = ((X[:, j, None] - inputs[j]) ** 2 for j in range(X.shape[1]))
    return sum(squares, jnp.zeros((), X.dtype))


@jax.custom_jvp
def _by_product(X: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
    """Return ‖x‖² − 2xᵀz + ‖z‖² computed in float64, and 0 where that is within rounding error."""
    dtype = X.dtype
    with jax.enable_x64(True):
        X, Z = X.astype(jnp.float64), Z.astype(jnp.float64)
        centre = jnp.mean(Z, axis=0)  # an offset of the data would cost digits
        X, Z = X - centre, Z - centre
        ones_X, ones_Z = jnp.ones((X.shape[0], 1), X.dtype), jnp.ones((Z.shape[0], 1), Z.dtype)
        size_X, size_Z = jnp.sum(X**2, axis=1, keepdims=True), jnp.sum(Z**2, axis=1, keepdims=True)
        left = jnp.concatenate([-2 * X, size_X, ones_X], axis=1)
        right = jnp.concatenate([Z, ones_Z, size_Z], axis=1)
        r2 = jnp.matmul(left, right.T, precision="highest")
        # Rough kernels depend on the root of r², which would make the rounding of equal points many times larger.
        rounding = ROUNDINGS * float(jnp.finfo(r2.dtype).eps) * (size_X + size_Z.T)
        return jnp.where(r2 > rounding, r2, 0).astype(dtype)


@_by_product.defjvp
def _(primals: tuple, tangents: tuple) -> tuple:
    """Return 2(x − z)ᵀ(dx − dz), in the precision of the points, which is enough for a derivative."""
    # Not the derivative of the `where`, which is 0 where r² is set to 0: second derivatives there would be lost.
    (X, Z), (dX, dZ) = primals, tangents
    centre = jnp.mean(Z, axis=0)
    A, B = X - centre, Z - centre
    product = lambda left, right: jnp.matmul(left, right.T, precision="highest")
    own = jnp.sum(A * dX, axis=1)[:, None] + jnp.sum(B * dZ, axis=1)[None, :]
    return _by_product(X, Z), 2 * (own - product(A, dZ) - product(dX, B))
