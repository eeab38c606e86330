"""Sketch and project: exact solves on blocks of rows. It is the default solver for more than a few thousand rows."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from pathgp import _checks as checks
from pathgp.kernels import Kernel
from pathgp.linalg.jitter import damped_inverse_factor, least_noise
from pathgp.linalg.neighbours import Exhaustive, neighbourhood_order, smallest
from pathgp.linalg.small import definite_solve
from pathgp.linalg.tiles import column_sharded_product, map_rows, row_sharded_product
from pathgp.parallel.sharding import add_rows, constrain_sharding, padded_rows, slice_rows
from pathgp.solvers.error import BLOCK_ROWS, NUM_PARTNERS, SLOPE, displace, estimate_slope, pick_neighbour_pairs
from pathgp.solvers.local import Local
from pathgp.solvers.loop import Iterative, Look
from pathgp.system.system import System, Targets

PROBES = 256
"""Points at which the error is estimated. The error of one column varies much from place to place."""
FUNCTION_FACTOR = 2.0
"""How much larger an error may be in standard deviations of f(x) than in those of a new observation."""
SEARCH_BATCH = 32
"""Probes whose neighbours are searched at the same time; this takes as many rows of K in memory."""
GIVE_UP_PASSES = 8
"""Passes before the first extrapolation of the error."""
ROUNDED = 1e-6
"""A relative residual up to this size is rounding."""


class _Plan(eqx.Module):
    """The rows in the order of the blocks, followed by padding, so that they can be sharded in that order."""

    X: Float[Array, "P d"]
    noise: Float[Array, "P"]
    valid: Bool[Array, "P"]
    """False for padding."""
    order: Int[Array, "N"]
    """The indices of the rows in the order of the blocks."""
    padded: Int[Array, "P"]
    """`order`, with its last entry repeated for the padding."""
    inverse_factors: Float[Array, "k b b"] | None
    """The inverse Cholesky factor of each block; None if they are computed in each step."""
    probes: "_Probes"
    rows: int = eqx.field(static=True)
    """The number of rows of `system.X`, padding included."""
    mesh: Mesh | None = eqx.field(static=True)


class _Probes(eqx.Module):
    """Points, and for each the coefficients that estimate the error there from residuals."""

    x: Float[Array, "p d"]
    draws: Float[Array, "p s"]
    """The prior draws at these points; zero for a mean."""
    neighbours: Int[Array, "p m"]
    """Rows, by their place in the order of the blocks, that `block` and `local` belong to."""
    block: Float[Array, "p m"]
    """k(x, X_c) H_cc⁻¹."""
    local: Float[Array, "p m"] | None
    """The coefficients of the local correction, if there is one."""
    variance: Float[Array, "p"]
    """k(x, x) − k(x, X_c) H_cc⁻¹ k(X_c, x)."""
    noise: Float[Array, ""]
    """The noise variance, averaged over the rows."""


class _Iterate(eqx.Module):
    """Weights and their residual b − Hw, in the order of the blocks."""

    w: Float[Array, "P s"]
    r: Float[Array, "P s"]


class _State(eqx.Module):
    """The iterate w, the momentum iterate v and the average w̄, with what the next step needs.

    `age` and `plain` are floats because the loop freezes arrays of floats when a column has converged.
    """

    iterate: _Iterate
    momentum: _Iterate
    average: _Iterate
    age: Float[Array, "s"]
    """Steps of each column since its start or last restart."""
    plain: Float[Array, "s"]
    """1 for a column that is no longer accelerated, because its residual has grown; else 0."""
    sequence: Int[Array, "k"]
    """The order of the blocks in this pass."""
    steps: Int[Array, ""]
    key: PRNGKeyArray


class SAP(Iterative):
    """Block projections: sketch and project (Wu et al., AISTATS 2024; Rathore et al., 2024 and 2025).

    The rows are partitioned into blocks B. Each pass visits the blocks in a new random order. A step solves one block
    exactly and updates all residuals r = b − Hw:

        d = H_BB⁻¹ r_B,    w_B ← w_B + d,    r ← r − H_{·B} d.

    The returned weights are an average of the iterates, in which iterate t has the weight t^η (Shamir and Zhang, 2013).
    The average forgets the start and smooths out the effect of the order of the blocks, which is worth several passes.
    Its residual is known at every step.

    With acceleration, a second iterate v takes longer and longer steps (Nesterov, 2012, without strong convexity, so
    that there is nothing to tune). With n blocks, step t projects from z = w + (v − w)/(γn) and moves both iterates:

        w ← z + d,    v ← v + γd,    γ = max(1, (t + 2)/2n).

    The first two passes are those of the plain method. With little noise, rounding makes acceleration unstable. A
    column whose residual grows is therefore restarted at its best iterate, without acceleration.

    After every pass the error of k(x, X)w̄ is estimated at `PROBES` points by the method of
    `pathgp.posterior.accuracy`, after the local correction if there is one. A column has converged when its relative
    residual is within `tolerance` and its estimated error is small enough. The error must be at most `error` standard
    deviations of a new observation, and at most twice `error` standard deviations of f(x). Samples may have three times
    as much. With a relative residual of at most 10⁻⁶, the error always counts as small enough.

    The blocks are random, so that each is a sample of all the data. With `local`, they are neighbourhoods: these do
    worse without a correction, but leave their error at the borders of the blocks, where the local correction removes
    it (`pathgp_paper.bench.rivals`).

    Parameters
    ----------
    passes
        Maximum passes over the data.
    block_size
        Largest number of rows in a block; blocks are of equal size.
    averaging_exponent
        The exponent η of the average. None returns the last iterate.
    accelerated
        Whether to use acceleration.
    factor_bytes
        Keep the inverse Cholesky factors of the blocks if they take at most this many bytes; else compute them in each
        step.
    tolerance
        Relative residual that a column must reach.
    error
        Estimated error that a column must reach, in the units above.
    local
        Local correction that will be applied to the solution, or None.
    may_give_up
        Whether to stop at pass 8, 16 or 32 if the power law through the errors at that pass and at half as many passes
        predicts more than `error` at the last pass.
    max_seconds
        Time limit in seconds.
    """

    passes: int = 40
    block_size: int = 2048
    averaging_exponent: float | None = 4.0
    accelerated: bool = True
    factor_bytes: int = 512 * 2**20
    tolerance: float = 0.01
    error: float = 0.03
    local: Local | None = None
    may_give_up: bool = False
    max_seconds: float = float("inf")
    # Only the loop on the host reads these, so changing them does not recompile.
    limits: ClassVar[tuple[str, ...]] = ("passes", "error", "may_give_up", *Iterative.limits)

    def __check_init__(self) -> None:
        checks.require_at_least(self.passes, 1, "SAP.passes")
        checks.require_at_least(self.block_size, 1, "SAP.block_size")
        checks.require_at_least(self.averaging_exponent or 0.0, 0, "SAP.averaging_exponent")

    def local_correction(self, system: System) -> Local | None:
        """Return `local`."""
        return self.local

    def blocks(self, system: System) -> tuple[int, int]:
        """Return the number of blocks and their size, which is as even as possible to have little padding."""
        number = -(-system.size // self.block_size)
        return number, -(-system.size // number)

    def prepare(self, system: System, targets: Targets, key: PRNGKeyArray) -> _Plan:
        """Partition the rows, draw the probes, and factorise the blocks if their factors can be kept."""
        number, size = self.blocks(system)
        order = self.partition(system, key)
        rows = padded_rows(system.mesh, number * size)
        padded = jnp.pad(order, (0, rows - system.size), mode="edge")
        valid = jnp.arange(rows) < system.size
        probes = _probes(self.local, system, targets, order)
        X, noise = constrain_sharding(system.mesh, (system.X[padded], system.noise_diagonal[padded]), rows)
        plan = _Plan(X, noise, valid, order, padded, None, probes, system.X.shape[0], system.mesh)
        if number * size**2 * plan.X.dtype.itemsize > self.factor_bytes:
            return plan
        factors = jax.lax.map(lambda i: self._inverse_factor(plan, system, i * size, size), jnp.arange(number))
        return eqx.tree_at(lambda p: p.inverse_factors, plan, factors, is_leaf=lambda x: x is None)

    def partition(self, system: System, key: PRNGKeyArray) -> Int[Array, "N"]:
        """Return the row indices in the order of the blocks: random, or by neighbourhoods with `local`."""
        if self.local is None:
            return jax.random.permutation(key, system.size)
        return neighbourhood_order(system.kernel.coordinates(system.replicate(system.X)))

    def _inverse_factor(self, plan: _Plan, system: System, start: Int[Array, ""], size: int) -> Float[Array, "b b"]:
        """Return L⁻¹ with LLᵀ = H_BB. Two products with it are faster than triangular solves.

        Noise that the dtype does not resolve is raised to the least that it does. The projection is then damped instead
        of exact, and later passes remove the error that is left.
        """
        X, noise = slice_rows(system.mesh, (plan.X, plan.noise), start, size)
        valid = jax.lax.dynamic_slice_in_dim(plan.valid, start, size)
        # Padding gets an identity block, so that its coordinates stay zero.
        K = jnp.where(valid[:, None] & valid[None, :], system.kernel(X, X), 0)
        return damped_inverse_factor(K, jnp.where(valid, noise, 1))

    def start(
        self,
        plan: _Plan,
        system: System,
        targets: Targets,
        key: PRNGKeyArray,
        init: Float[Array, "N s"] | None,
    ) -> _State:
        """Start from zero weights with the residual b, or from `init`, whose residual costs one pass."""
        padding = ((0, plan.X.shape[0] - system.size), (0, 0))
        w = jnp.zeros_like(targets.signal) if init is None else init
        r = targets.total if init is None else targets.total - system @ init
        w, r = constrain_sharding(system.mesh, tuple(jnp.pad(x[plan.order], padding) for x in (w, r)), plan.X.shape[0])
        number, _ = self.blocks(system)
        first, zeros = _Iterate(w, r), jnp.zeros(w.shape[1], w.dtype)
        return _State(first, first, first, zeros, zeros, jnp.arange(number), jnp.zeros((), int), key)

    def step(self, plan: _Plan, system: System, targets: Targets, state: _State) -> _State:
        """Project on one block."""
        number, size = self.blocks(system)
        key, sequence = jax.lax.cond(
            state.steps % number == 0,
            lambda: _new_pass(state.key, number),
            lambda: (state.key, state.sequence),
        )
        start = sequence[state.steps % number] * size
        gamma = jnp.maximum(1, (state.age + 2) / (2 * number))
        # With weight 0 the step starts from w itself: the plain method.
        alpha = jnp.where(state.plain > 0, 0, 1 / (gamma * number)) if self.accelerated else 0.0
        z = _interpolate(state.iterate, state.momentum, alpha)
        d, Hd = self._project(plan, system, z.r, start, size)
        iterate = _update_block(plan, z, d, Hd, start)
        momentum = _update_block(plan, state.momentum, gamma * d, gamma * Hd, start) if self.accelerated else iterate
        # This recursion gives iterate t a weight that grows as t^η (Shamir and Zhang, 2013).
        eta = self.averaging_exponent
        rate = 1.0 if eta is None else (eta + 1) / (state.age + eta + 1)
        average = _interpolate(state.average, iterate, rate)
        state = _State(iterate, momentum, average, state.age + 1, state.plain, sequence, state.steps + 1, key)
        return constrain_sharding(system.mesh, state, plan.X.shape[0])

    def restart(
        self,
        plan: _Plan,
        system: System,
        targets: Targets,
        state: _State,
        weights: Float[Array, "N s"],
        residual: Float[Array, "N s"] | None,
        grown: Bool[Array, "s"],
    ) -> _State:
        """Restart the columns `grown` from `weights`, without acceleration."""
        padding = ((0, plan.X.shape[0] - system.size), (0, 0))
        r = targets.total - system @ weights if residual is None else residual
        best = _Iterate(*(jnp.pad(x[plan.order], padding) for x in (weights, r)))
        back = lambda old: jax.tree.map(lambda a, b: jnp.where(grown, a, b), best, old)
        iterate, momentum, average = map(back, (state.iterate, state.momentum, state.average))
        age, plain = jnp.where(grown, 0, state.age), jnp.where(grown, 1, state.plain)
        return _State(iterate, momentum, average, age, plain, state.sequence, state.steps, state.key)

    def _project(
        self, plan: _Plan, system: System, r: Float[Array, "P s"], start: Int[Array, ""], size: int
    ) -> tuple[Float[Array, "b s"], Float[Array, "P s"]]:
        """Return d = H_BB⁻¹ r_B and H_{·B} d."""
        if plan.inverse_factors is None:
            factor = self._inverse_factor(plan, system, start, size)
        else:
            factor = plan.inverse_factors[start // size]
        X_B, noise_B, r_B = slice_rows(system.mesh, (plan.X, plan.noise, r), start, size)
        d = factor.T @ (factor @ r_B)
        if system.K is None:
            Hd = row_sharded_product(system.mesh, system.kernel, plan.X, X_B, d, system.tile) * plan.valid[:, None]
        else:
            rows = jax.lax.dynamic_slice_in_dim(plan.padded, start, size)
            Hd = system.columns(rows, d)[plan.padded] * plan.valid[:, None]
        return d, add_rows(system.mesh, Hd, noise_B[:, None] * d, start)

    def weights(self, plan: _Plan, state: _State) -> Float[Array, "N s"]:
        """Return the averaged iterate in the order of the data."""
        return _to_data_order(plan, state.average.w)

    def residual(
        self, plan: _Plan, system: System, targets: Targets, state: _State
    ) -> tuple[Float[Array, "s"], Float[Array, "N s"]]:
        """Return the residual of the averaged iterate, which every step updates."""
        r = _to_data_order(plan, state.average.r)
        return jnp.linalg.norm(r, axis=0) / targets.norms, r

    def estimated_error(self, plan: _Plan, system: System, targets: Targets, state: _State) -> Float[Array, "s"]:
        """Return the estimated error of k(x, X)w̄ for each column, in the units of `error`."""
        return _estimate_error(plan, system, targets, state.average)

    def has_converged(self, look: Look, targets: Targets) -> Bool[Array, "s"]:
        """Return which columns are within both `tolerance` and `error`; a residual of rounding satisfies the latter."""
        is_mean = jnp.arange(look.relative.shape[0]) < targets.num_means
        is_exact = look.error <= jnp.where(is_mean, self.error, 3 * self.error)
        return (look.relative <= self.tolerance) & (is_exact | (look.relative <= ROUNDED))

    def should_stop(self, look: Look, targets: Targets, history: list[float], looks: int) -> bool:
        """Return whether the error of the means, extrapolated to the last pass, stays above `error`."""
        if not self.may_give_up or targets.num_means == 0:
            return False
        history.append(float(jnp.max(look.error[: targets.num_means])))
        done = len(history)
        if done < GIVE_UP_PASSES or done & (done - 1):  # only at powers of two from 8 on
            return False
        now, before = history[-1], history[done // 2 - 1]
        # There is no power law through a zero error, or one that is not finite.
        if not (0 < before < np.inf and now < np.inf):
            return False
        return bool(now * (now / before) ** np.log2(looks / done) > self.error)

    def schedule(self, system: System) -> tuple[int, int, float]:
        """Check the residual after every pass, which is one step per block."""
        number, _ = self.blocks(system)
        return self.passes * number, number, 1 / number


def _estimate_error(plan: _Plan, system: System, targets: Targets, iterate: _Iterate) -> Float[Array, "s"]:
    """Return the estimated error of each column at the probes, in the units of `SAP.error`."""
    probes, means = plan.probes, targets.num_means
    values = column_sharded_product(system.mesh, system.kernel, probes.x, plan.X, iterate.w, system.tile)
    r = iterate.r[probes.neighbours]
    guess = jnp.einsum("pm,pms->ps", probes.block, r)
    if probes.local is not None:
        added = jnp.einsum("pm,pms->ps", probes.local, r)
        values, guess = values + added, guess - added
    deviations = (probes.draws - values)[:, means:]
    v = probes.variance[:, None]
    if deviations.shape[1]:  # a few samples may all be small at a point, hence the bound
        v = jnp.maximum(jnp.mean(deviations**2, axis=1, keepdims=True), 0.1 * v)
    unit = jnp.where(v > 0, jnp.sqrt(v), 1)
    share = estimate_slope(deviations / unit, guess[:, means:] / unit) if deviations.shape[1] else SLOPE
    rms = lambda unit: share * jnp.sqrt(jnp.mean((guess / unit) ** 2, axis=0))
    return jnp.maximum(rms(jnp.sqrt(unit**2 + probes.noise)), rms(unit) / FUNCTION_FACTOR)


def _probes(local: Local | None, system: System, targets: Targets, order: Int[Array, "N"]) -> _Probes:
    """Return points as far from the data as new rows are, with the blocks of rows around them."""
    number, size = min(PROBES, system.size), min(BLOCK_ROWS, system.size)
    A, X, noise = (system.replicate(a) for a in (system.X, system.X, system.noise_diagonal))
    # Evenly spaced in the order of the blocks, so that every block has its share.
    A = A[order[np.arange(number) * system.size // number]]
    B, C = (
        X[partner]
        for partner in pick_neighbour_pairs(_most_correlated(system.kernel, A, X, min(NUM_PARTNERS + 1, system.size)))
    )
    x = displace(A, B, C, X)
    near = _most_correlated(system.kernel, x, X, size)
    draws = jnp.zeros((number, targets.num_means), x.dtype)
    if targets.draws is not None:
        draws = jnp.concatenate([draws, targets.draws.features.apply(x, targets.draws.weights)], axis=1)

    def around(x: Float[Array, "d"], c: Int[Array, "m"]) -> tuple[Array, Array]:
        K, k = system.kernel(X[c], X[c]), system.kernel(X[c], x[None])[:, 0]
        a = definite_solve(K + jnp.diag(jnp.maximum(noise[c], least_noise(K))), k)
        return a, system.kernel.diag(x[None])[0] - a @ k

    block, variance = jax.vmap(around)(x, near)
    places = jnp.zeros_like(order).at[order].set(jnp.arange(system.size))
    if local is None:
        return _Probes(x, draws, places[near], block, None, variance, system.mean_noise)
    coefficients, rows = local.projection(system, search=Exhaustive).coefficients(x)
    both = places[jnp.concatenate([near, rows], axis=1)]
    zeros = jnp.zeros_like
    block, of_local = (
        jnp.concatenate(pair, axis=1) for pair in ((block, zeros(coefficients)), (zeros(block), coefficients))
    )
    return _Probes(x, draws, both, block, of_local, variance, system.mean_noise)


def _most_correlated(kernel: Kernel, x: Float[Array, "p d"], X: Float[Array, "N d"], num: int) -> Int[Array, "p m"]:
    """Return the rows with the largest correlation with each point.

    Unlike a search by coordinates, this works for any kernel.
    """
    deviation = jnp.sqrt(kernel.diag(X))
    return map_rows(lambda x: smallest(-kernel(x, X) / deviation, num)[1], x, SEARCH_BATCH)


def _to_data_order(plan: _Plan, x: Float[Array, "P s"]) -> Float[Array, "N s"]:
    """Return rows in the order of the data, without the padding of the blocks."""
    size = plan.order.shape[0]
    ordered = jnp.zeros((plan.rows, x.shape[1]), x.dtype).at[plan.order].set(x[:size])
    return constrain_sharding(plan.mesh, ordered, plan.rows)


def _new_pass(key: PRNGKeyArray, number: int) -> tuple[PRNGKeyArray, Int[Array, "k"]]:
    """Return a new key and the order of the blocks in the next pass."""
    key, subkey = jax.random.split(key)
    return key, jax.random.permutation(subkey, number)


def _interpolate(a: _Iterate, b: _Iterate, weight: float | Float[Array, "s"]) -> _Iterate:
    """Return (1 − weight) a + weight b."""
    return jax.tree.map(lambda x, y: x + weight * (y - x), a, b)


def _update_block(
    plan: _Plan, z: _Iterate, d: Float[Array, "b s"], Hd: Float[Array, "P s"], start: Int[Array, ""]
) -> _Iterate:
    """Return z with d added to its weights in block B, and the residual updated by Hd."""
    return _Iterate(add_rows(plan.mesh, z.w, d, start), z.r - Hd)
