"""`condition`: from a GP and data to its posterior."""

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from pathgp import _checks as checks
from pathgp.linalg.precision import cast, required_dtype, working_in
from pathgp.posterior.gp import GP, GP_EXAMPLE, named_parts
from pathgp.posterior.posterior import Posterior, posterior_of
from pathgp.posterior.problem import Problem
from pathgp.runs.checkpoint import Checkpoint, open_slot
from pathgp.runs.run import Run
from pathgp.solvers import Auto, Observer, Solver
from pathgp.solvers.local import Local


def condition(
    gp: GP,
    X: Shaped[ArrayLike, "..."],
    y: Shaped[ArrayLike, "..."],
    *,
    key: PRNGKeyArray,
    solver: Solver = Auto(),  # noqa: B008, a frozen value
    local: Local | None = None,
    num_samples: int = 64,
    num_features: int = 2000,
    keep_bytes: int = 0,
    init: Float[Array, "M s"] | None = None,
    mesh: Mesh | None = None,
    observe: Observer | None = None,
    progress: bool = False,
    checkpoint: Checkpoint | None = None,
) -> Posterior:
    """The posterior of `gp` given observations y at the rows of X: a vector, or a column for each of several targets.

    All of it is one linear system with many right-hand sides, (K + Σ)W = [y − m | f₁(X) + ε₁ | … | f_s(X) + ε_s],
    where the prior draws f are `num_features` random features with normal weights. Several targets share the kernel,
    the noise and the samples' deviations from the mean: each is one column y − m more.

    `local` finishes the solve at each point where the posterior is evaluated, so that a few passes over the data are
    enough; and it makes variances more precise than samples alone do. If None, it is what the solver counts on.

    K is computed anew, in tiles, for every product, unless it fits in `keep_bytes`: a solver of many passes is then
    faster, and its result the same.

    Rows that repeat the inputs of others are put together with them first, which does not change the posterior:
    `posterior.system` has each place once.

    `init` are weights to start from, the column of the mean first, such as `trace.weights` of `likelihood.Pathwise`.
    Those of samples belong to the draws of this key.

    With a `mesh` of one axis, for instance `pathgp.parallel.jobs.mesh()`, the rows of the data and of all columns are
    split over its devices, and every product is computed where the rows are. The result is the same, but for rounding.
    A local projection needs any row, so for it every device has X, y, the samples' targets and the residual whole.

    With a `checkpoint` the same call goes on where an iterative solver was stopped, to the same result; on another
    mesh too, but for rounding.

    >>> import jax, jax.numpy as jnp
    >>> from pathgp.kernels import Matern32
    >>> X = jnp.linspace(0, 1, 50)[:, None]
    >>> posterior = condition(GP(Matern32(0.3), noise=0.01), X, jnp.sin(6 * X[:, 0]), key=jax.random.key(0))
    >>> x = jnp.array([[0.25], [0.5]])
    >>> posterior.mean(x).shape, posterior.samples(x).shape
    ((2,), (2, 64))
    """
    checks.require_instance(gp, GP, "gp", GP_EXAMPLE)
    dtype = _required_dtype(gp, X, solver)
    with working_in(dtype):
        init = None if init is None else checks.as_floats(init)
        return _condition(
            cast(gp, dtype), X, y, key, solver, local, num_samples, num_features, keep_bytes, init, mesh, observe,
            progress, checkpoint,
        )  # fmt: skip


def _condition(
    gp: GP,
    X: Shaped[ArrayLike, "..."],
    y: Shaped[ArrayLike, "..."],
    key: PRNGKeyArray,
    solver: Solver,
    local: Local | None,
    num_samples: int,
    num_features: int,
    keep_bytes: int,
    init: Float[Array, "M s"] | None,
    mesh: Mesh | None,
    observe: Observer | None,
    progress: bool,
    checkpoint: Checkpoint | None,
) -> Posterior:
    """`condition`, in the precision that JAX is set to."""
    checks.require_instance(solver, Solver, "solver", "a solver such as solvers.CG()")
    checks.require_instance(local, Local | None, "local", "a local projection such as Local(128), or None")
    X = checks.as_inputs(X)
    gp.kernel.check_inputs(X)
    y = checks.as_targets(y, X.shape[0])
    checks.require_noise_shape(gp.noise, X.shape[0])
    checks.require_int(num_samples, 0, "num_samples")
    checks.require_int(num_features, 1, "num_features")
    checks.require_key(key)
    sizes = {"num_samples": num_samples, "num_features": num_features, "keep_bytes": keep_bytes}
    asked = {
        "X": X,
        "y": y,
        **named_parts(gp),
        "the solver": solver,
        "local": local,
        "init": init,
        "the key": key,
        **sizes,
    }
    slot = open_slot(checkpoint, "solve", lambda: asked)
    problem, merged = Problem.of(gp, X, y, num_samples, num_features, key).merge_duplicates()
    problem = problem.shard(mesh).with_stored_kernel(keep_bytes)
    if local is not None:
        solver = solver.with_local(local)
        gp.kernel.coordinates(X[:1])  # raises an error for a kernel without coordinates before the long work
    local = local or solver.local_correction(problem.system)
    init = problem.start(init, solver, merged)
    with slot as saved:
        run = Run(observe, progress, saved)
        solution = solver.solve(problem.system, problem.targets, key=problem.key, init=init, run=run)
    return posterior_of(problem, solution, solver, local)


def _required_dtype(gp: GP, X: Shaped[ArrayLike, "..."], solver: Solver) -> np.dtype:
    """The precision that the noise and the number of rows ask for."""
    points = checks.as_inputs(X)
    variance = float(jnp.max(gp.kernel.diag(points)))
    noise = 1 / float(jnp.mean(1 / gp.noise))  # of rows with different noise, the precise ones count
    return required_dtype(variance, noise, points.shape[0])
