"""The collapsed lower bound on the log marginal likelihood, for given inducing points."""

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Shaped
from scipy import linalg

from pathgp import _checks as checks
from pathgp.posterior.gp import GP, check_data
from pathgp.solvers.inducing.base import InducingCholesky, NormalEquations
from pathgp.system.system import System


def collapsed_bound(
    gp: GP, X: Shaped[ArrayLike, "..."], y: Shaped[ArrayLike, "..."], z: Shaped[ArrayLike, "..."]
) -> float:
    """Return log N(y; m, Q + Σ) − ½ tr Σ⁻¹(K − Q) with Q = K_Xz K_zz⁻¹ K_zX (Titsias, 2009).

    This is the largest ELBO of any q(u) at the points z. It is never more than log p(y), and equals it if z are the
    data. It is computed in float64 and in tiles.

    Parameters
    ----------
    gp
        The GP with its hyperparameters.
    X
        Inputs of the data.
    y
        Observations.
    z
        Inducing points.

    >>> import numpy as np
    >>> from pathgp.kernels import RBF
    >>> bound = collapsed_bound(GP(RBF(), noise=1.0), np.array([[0.0]]), np.array([2.0]), np.array([[0.0]]))
    >>> bool(np.isclose(bound, -np.log(4 * np.pi) / 2 - 1))
    True
    """
    X, y = check_data(X, y)
    checks.require_noise_shape(gp.noise, X.shape[0])
    system = System(gp.kernel, X, gp.noise)
    points = InducingCholesky(checks.as_inputs(z, "z")).support(system)
    # The jitter of K_zz lowers the bound slightly, which remains a lower bound.
    _, gram, right = NormalEquations.of(system, points, (y - gp.mean)[:, None], np.float64)
    noise = np.asarray(system.noise_diagonal, dtype=np.float64)
    squares = (np.asarray(y, dtype=np.float64) - float(gp.mean)) ** 2
    variances = np.asarray(gp.kernel.diag(X), dtype=np.float64)
    # With gram = I + AAᵀ, |Q + Σ| = |gram| |Σ|, and the inverse of Q + Σ is by the Woodbury identity.
    factor = linalg.cholesky(gram, lower=True)
    explained = np.sum(linalg.solve_triangular(factor, right, lower=True) ** 2)
    log_determinant = 2 * np.sum(np.log(np.diag(factor))) + np.sum(np.log(2 * np.pi * noise))
    unexplained = np.sum(variances / noise) - (np.trace(gram) - len(gram))  # tr Σ⁻¹Q = tr AAᵀ
    return float(-(log_determinant + np.sum(squares / noise) - explained + unexplained) / 2)
