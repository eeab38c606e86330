"""The KL-optimal sparse posterior, with samples that follow it exactly."""

import time

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy import linalg

from pathgp import _checks as checks
from pathgp.runs.run import Run
from pathgp.solvers.base import Solution
from pathgp.solvers.inducing.base import Inducing, NormalEquations, to_solution
from pathgp.system.system import System, Targets


class SGPR(Inducing):
    """Sparse Gaussian process regression (Titsias, 2009): the closed form for small M, in float64.

    Mean and samples are those of the KL-optimal distribution of the values at the points z,

        mean k(·, z) (K_zz + K_zX Σ⁻¹ K_Xz)⁻¹ K_zX Σ⁻¹ y,
        covariance k − k(·, z) K_zz⁻¹ k(z, ·) + k(·, z) (K_zz + K_zX Σ⁻¹ K_Xz)⁻¹ k(z, ·).

    The targets of a sample are f^(z)(X) + ε with f^(z)(·) = k(·, z) K_zz⁻¹ f(z) (the paper's section 3.3 and appendix
    C). `InducingCholesky`, and all solvers that minimise the same objective, have f(X) there, which is the paper's
    approximation. Comparing them with this solver measures that approximation.

    Parameters
    ----------
    points
        The inducing points z.
    """

    points: Float[Array, "M d"] = eqx.field(converter=lambda x: checks.as_inputs(x, "points"))

    def solve(
        self,
        system: System,
        targets: Targets,
        *,
        key: PRNGKeyArray,
        init: Float[Array, "M s"] | None = None,
        run: Run | None = None,
    ) -> Solution:
        """Return the exact solution. `key` and `init` have no effect, and `run` only observes."""
        clock = time.perf_counter()
        z, means = self.support(system), targets.num_means
        f_z = np.asarray(targets.draws_at(z), dtype=np.float64)
        B = jnp.concatenate([targets.total[:, :means], targets.noise[:, means:]], axis=1)
        equations = NormalEquations.of(system, z, B, z.dtype)
        # Since A Σ^−½ f^(z)(X) = AAᵀ L⁻¹ f(z), f^(z) need not be evaluated at the data.
        whitened = linalg.solve_triangular(equations.L, f_z, lower=True)
        equations.right[:, means:] += equations.gram @ whitened - whitened
        return to_solution(self, z, equations, system.size, clock, run)
