"""`condition`, which computes the posterior of a GP given data."""

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
from pathgp.system.dense import diagonal_float64


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
    """Return the posterior of a GP given data, by pathwise conditioning.

    The mean and all samples are the solution of one linear system with many right-hand sides,

        (K + Σ)W = [y − m | f₁(X) + ε₁ | … | f_s(X) + ε_s],

    where the prior draws f are random features with normal weights. Several targets share the kernel, the noise and the
    deviations of the samples from the mean, so each further target adds one column y − m.

    Duplicate rows of X are merged first, which does not change the posterior. `posterior.system` has only the distinct
    rows.

    Parameters
    ----------
    gp
        Kernel, noise variance and prior mean.
    X
        Inputs, one row per observation.
    y
        Observations: a vector, or a matrix with one column per target.
    key
        Random key of the prior draws, of the noise draws and of the solver.
    solver
        Solver of the linear system. The default, `Auto`, chooses one by the number of rows.
    local
        Local correction of the solution at each point where the posterior is evaluated. With it a few passes over the
        data are enough, and variances are more precise than from samples only. None uses the one that the solver
        relies on, if any.
    num_samples
        Number of samples; 0 computes the mean only.
    num_features
        Number of random features of the prior draws.
    keep_bytes
        Keep K in memory if it takes at most this many bytes; else compute it in tiles for every product. A solver that
        takes many passes is faster with K in memory, and its result is the same.
    init
        Weights to start from, with the column of the mean first, such as `trace.weights` of `likelihood.Pathwise`. The
        columns of samples must belong to the draws of the same key. None starts from zero.
    mesh
        Devices as a mesh of one axis, for instance `pathgp.parallel.jobs.mesh()`. The rows of the data and of all
        columns are sharded over them, and each device computes the products for its rows. The result is the same except
        for rounding. A local correction may use any row, so with it X, y, the right-hand sides of the samples and the
        residual are also replicated on every device.
    observe
        `Observer` that is called with snapshots of an iterative solve.
    progress
        Whether to show a progress bar.
    checkpoint
        Directory from which the same call resumes an interrupted iterative solve, with the same result. It may resume
        on another mesh, with the same result except for rounding.

    Returns
    -------
    posterior
        The posterior, with its estimated errors in `posterior.info`.

    Raises
    ------
    ValueError
        If an argument is not valid, or if the checkpoint belongs to another call.
    DivergenceError
        If an iterative solver diverges.

    >>> import jax, jax.numpy as jnp
    >>> from pathgp.kernels import Matern32
    >>> X = jnp.linspace(0, 1, 50)[:, None]
    >>> posterior = condition(GP(Matern32(0.3), noise=0.01), X, jnp.sin(6 * X[:, 0]), key=jax.random.key(0))
    >>> x = jnp.array([[0.25], [0.5]])
    >>> posterior.mean(x).shape, posterior.samples(x).shape
    ((2,), (2, 64))
    """
    checks.require_instance(gp, GP, "gp", GP_EXAMPLE)
    dtype = dtype_for(gp, X)
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
    """Return the posterior, computed in the precision that JAX is set to."""
    run = Run(observe, progress)  # its time limit includes the prior draws
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
        gp.kernel.coordinates(X[:1])  # raises before the solve if the kernel has no coordinates
    local = local or solver.local_correction(problem.system)
    init = problem.start(init, solver, merged)
    with slot as saved:
        run.saved = saved
        solution = solver.solve(problem.system, problem.targets, key=problem.key, init=init, run=run)
    return posterior_of(problem, solution, solver, local)


def dtype_for(gp: GP, X: Shaped[ArrayLike, "..."]) -> np.dtype:
    """Return the dtype that the noise and the number of rows require."""
    points = checks.as_inputs(X)
    variance = float(np.max(diagonal_float64(gp.kernel, points)))
    # The harmonic mean of the noise, because the rows with the least noise decide.
    return required_dtype(variance, 1 / float(np.mean(1 / np.asarray(gp.noise, np.float64))), points.shape[0])
