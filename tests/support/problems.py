"""Linear systems small enough for an independent exact solution."""

import jax
import jax.numpy as jnp
import numpy as np

from pathgp.kernels import Matern32
from pathgp.system.system import System, Targets


def problem(N=2000, noise=0.1, columns=4, d=3, seed=0, uneven=False, tile=(512, 2048), lengthscale=1.0):
    """A system and targets: a smooth mean column without noise, then columns f + ε."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(N, d))
    variances = noise * (np.exp(rng.uniform(-1, 1, size=N)) if uneven else np.ones(N))
    frequencies = rng.normal(size=(d, columns))
    f = np.sin(X @ frequencies + np.arange(columns))
    epsilon = np.sqrt(variances)[:, None] * rng.normal(size=(N, columns))
    signal, added = f + 0, epsilon.copy()
    signal[:, 0] += added[:, 0]
    added[:, 0] = 0
    system = System(
        Matern32(lengthscale),
        jnp.asarray(X, dtype=float),
        jnp.asarray(variances if uneven else noise, dtype=float),
        tile,
    )
    return system, Targets(jnp.asarray(signal, dtype=float), jnp.asarray(added, dtype=float))


def exact(system, targets):
    """K and W = (K + Σ)⁻¹ B by NumPy in float64, from the formula of the kernel."""
    X = np.asarray(system.X, dtype=np.float64) / np.asarray(system.kernel.lengthscale, dtype=np.float64)
    r = np.sqrt(3 * np.maximum(0, np.sum((X[:, None] - X[None]) ** 2, axis=-1)))
    K = float(system.kernel.variance) * (1 + r) * np.exp(-r)
    H = K + np.diag(np.broadcast_to(np.asarray(system.noise, dtype=np.float64), len(X)))
    return K, np.linalg.solve(H, np.asarray(targets.total, dtype=np.float64))


def prediction_error(K, W, W_exact):
    """‖K(W − W*)‖ / ‖KW*‖, the relative error of predictions at the data, of each column."""
    difference = K @ (np.asarray(W, dtype=np.float64) - W_exact)
    return np.linalg.norm(difference, axis=0) / np.linalg.norm(K @ W_exact, axis=0)


def with_columns(targets, columns):
    return jax.tree.map(lambda x: x[:, columns], targets)


def matern32(A, B, lengthscale=1.0):
    """The kernel by NumPy in float64, from its formula."""
    A, B = (np.asarray(x, dtype=np.float64) / lengthscale for x in (A, B))
    r = np.sqrt(3 * np.sum((A[:, None] - B[None]) ** 2, axis=-1))
    return (1 + r) * np.exp(-r)
