"""Sketch and project: exact projections on blocks of the data, the workhorse."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from pathgp import _checks as checks
from pathgp.kernels import Kernel
from pathgp.linalg.blocks import damped_inverse_factor
from pathgp.linalg.neighbours import Exhaustive, in_neighbourhoods, smallest
from pathgp.linalg.small import definite_solve
from pathgp.linalg.tiles import map_rows, product_of_rows, split_product
from pathgp.parallel.sharding import add_rows, constrained, padded_rows, slice_rows
from pathgp.solvers.base import Iterative, Look
from pathgp.solvers.error import BLOCK, PARTNERS, SLOPE, displaced, partners, slope
from pathgp.solvers.local import Local
from pathgp.system.system import System, Targets

PROBES = 256
FUNCTION_FACTOR = 2.0
"""How much larger an error may be in standard deviations of f(x) than in those of a new observation."""
SEARCHED = 32
"""Probes whose neighbours are searched together, which takes that many rows of K."""
GIVE_UP_PASSES = 8
"""Passes before the first extrapolation of the error."""
ROUNDED = 1e-6
"""A relative residual that is rounding."""


class _Plan(eqx.Module):
    """The rows in the order of a partition, block after block, the last of them padding; so they are split too."""

    X: Float[Array, "P d"]
    noise: Float[Array, "P"]
    valid: Bool[Array, "P"]
    order: Int[Array, "N"]
    padded: Int[Array, "P"]
    inverse_factors: Float[Array, "k b b"] | None
    probes: "_Probes"
    rows: int = eqx.field(static=True)
    mesh: Mesh | None = eqx.field(static=True)


class _Probes(eqx.Module):
    """Points, and what a block of rows around each says of its residual."""

    x: Float[Array, "p d"]
    draws: Float[Array, "p s"]
    """The prior draws there; zero for a mean."""
    neighbours: Int[Array, "p m"]
    block: Float[Array, "p m"]
    """k(x, X_c) H_cc⁻¹."""
    local: Float[Array, "p m"] | None
    """The coefficients of the local projection, where there is one."""
    variance: Float[Array, "p"]
    noise: Float[Array, ""]
    """The noise variance, averaged over the rows."""


class _Iterate(eqx.Module):
    w: Float[Array, "P s"]
    r: Float[Array, "P s"]


class _State(eqx.Module):
    iterate: _Iterate
    momentum: _Iterate
    average: _Iterate
    age: Float[Array, "s"]
    """Steps of each column since its momentum began."""
    plain: Float[Array, "s"]
    """One for a column that has no momentum any more, because its residual grew with it; else zero."""
    sequence: Int[Array, "k"]
    steps: Int[Array, ""]
    key: PRNGKeyArray


class SAP(Iterative):
    """Block projections (Wu et al., AISTATS 2024; Rathore et al., 2024 and 2025).

    A partition of the rows into blocks B of about `block_size`. A step takes the next block (in a new random order each
    pass), solves it and keeps all residuals r = b − Hw up to date:

        d = H_BB⁻¹ r_B,    w_B ← w_B + d,    r ← r − H_{·B} d.

    The weights returned are an average of the iterates in which iterate t counts as t^η, with η = `averaging`
    (Shamir and Zhang, 2013): it forgets the start and smooths out what the order of the blocks does, which is worth
    as much as several passes. None takes the last iterate. The residual of the average is known at every step.

    Where `accelerated`, a second iterate v takes ever longer steps (Nesterov, 2012, without strong convexity, so
    there is nothing to tune), and with n blocks step t projects from z = w + (v − w)/(γn) and moves both,

        w ← z + d,    v ← v + γd,    γ = max(1, (t + 2)/2n).

    The first two passes are those of the plain method. A column whose residual grows goes back to its best iterate and
    on without acceleration, which rounding makes unstable where there is little noise.

    After every pass the error of k(x, X)w̄ is estimated at `PROBES` points, as `pathgp.posterior.accuracy` explains. A
    column is done when its estimated error is below `error` standard deviations of a new observation and twice `error`
    standard deviations of f(x), three times as much for samples, and its relative residual is within `tolerance`.
    Where `local` is to finish the solve, it does so there too.

    If `may_give_up`, it stops at pass 8, 16 or 32 when the power law through the errors at this pass and at half as
    many predicts more than `error` at the last pass.

    The partition is random, so that each block sees something of everything. Where `local` is to finish the solve, the
    blocks are neighbourhoods: alone they would do worse, but what they leave is at their borders, which `local` mends
    (`pathgp_paper.bench.rivals`).

    The inverse Cholesky factors of the blocks are kept if they take at most `factor_bytes`, and computed at every
    visit if they would take more.
    """

    passes: int = 40
    block_size: int = 2048
    averaging: float | None = 4.0
    accelerated: bool = True
    factor_bytes: int = 512 * 2**20
    tolerance: float = 0.01
    error: float = 0.03
    local: Local | None = None
    may_give_up: bool = False
    max_seconds: float = float("inf")
    limits: ClassVar[tuple[str, ...]] = ("passes", "error", "may_give_up", *Iterative.limits)

    def __check_init__(self) -> None:
        checks.at_least(self.passes, 1, "SAP.passes")
        checks.at_least(self.block_size, 1, "SAP.block_size")
        checks.at_least(0.0 if self.averaging is None else self.averaging, 0, "SAP.averaging")

    def counts_on(self, system: System) -> Local | None:
        """The local projection that finishes the solve."""
        return self.local

    def blocks(self, system: System) -> tuple[int, int]:
        """The number of blocks and their size: as even as it goes, so that there is little padding."""
        number = -(-system.size // self.block_size)
        return number, -(-system.size // number)

    def prepare(self, system: System, targets: Targets, key: PRNGKeyArray) -> _Plan:
        """The partition and the factors of its blocks."""
        number, size = self.blocks(system)
        order = self.partition(system, key)
        rows = padded_rows(system.mesh, number * size)
        padded = jnp.pad(order, (0, rows - system.size), mode="edge")
        valid = jnp.arange(rows) < system.size
        probes = _probes(self.local, system, targets, order)
        X, noise = constrained(system.mesh, (system.X[padded], system.noise_diagonal[padded]), rows)
        plan = _Plan(X, noise, valid, order, padded, None, probes, system.X.shape[0], system.mesh)
        if number * size**2 * plan.X.dtype.itemsize > self.factor_bytes:
            return plan
        factors = jax.lax.map(lambda i: self._inverse_factor(plan, system, i * size, size), jnp.arange(number))
        return eqx.tree_at(lambda p: p.inverse_factors, plan, factors, is_leaf=lambda x: x is None)

    def partition(self, system: System, key: PRNGKeyArray) -> Int[Array, "N"]:
        """The rows in the order of the blocks."""
        if self.local is None:
            return jax.random.permutation(key, system.size)
        return in_neighbourhoods(system.kernel.coordinates(system.everywhere(system.X)))

    def _inverse_factor(self, plan: _Plan, system: System, start: Int[Array, ""], size: int) -> Float[Array, "b b"]:
        """L⁻¹ with LLᵀ = H_BB: two products with it are faster than triangular solves.

        Where the noise is below what the precision resolves, the diagonal is raised to that: the projection is then
        damped, not exact, and later passes finish what it leaves.
        """
        X, noise = slice_rows(system.mesh, (plan.X, plan.noise), start, size)
        valid = jax.lax.dynamic_slice_in_dim(plan.valid, start, size)
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
        """Zero weights with residual b, or a warm start, whose residual costs one pass."""
        padding = ((0, plan.X.shape[0] - system.size), (0, 0))
        w = jnp.zeros_like(targets.signal) if init is None else init
        r = targets.total if init is None else targets.total - system @ init
        w, r = constrained(system.mesh, tuple(jnp.pad(x[plan.order], padding) for x in (w, r)), plan.X.shape[0])
        number, _ = self.blocks(system)
        first, zeros = _Iterate(w, r), jnp.zeros(w.shape[1], w.dtype)
        return _State(first, first, first, zeros, zeros, jnp.arange(number), jnp.zeros((), int), key)

    def step(self, plan: _Plan, system: System, targets: Targets, state: _State) -> _State:
        """One block projection."""
        number, size = self.blocks(system)
        key, sequence = jax.lax.cond(
            state.steps % number == 0,
            lambda: _new_pass(state.key, number),
            lambda: (state.key, state.sequence),
        )
        start = sequence[state.steps % number] * size
        gamma = jnp.maximum(1, (state.age + 2) / (2 * number))
        alpha = jnp.where(state.plain > 0, 0, 1 / (gamma * number)) if self.accelerated else 0.0
        z = _between(state.iterate, state.momentum, alpha)
        d, Hd = self._project(plan, system, z.r, start, size)
        iterate = _moved(plan, z, d, Hd, start)
        momentum = _moved(plan, state.momentum, gamma * d, gamma * Hd, start) if self.accelerated else iterate
        rate = 1.0 if self.averaging is None else (self.averaging + 1) / (state.age + self.averaging + 1)
        average = _between(state.average, iterate, rate)
        state = _State(iterate, momentum, average, state.age + 1, state.plain, sequence, state.steps + 1, key)
        return constrained(system.mesh, state, plan.X.shape[0])

    def restarted(
        self,
        plan: _Plan,
        system: System,
        targets: Targets,
        state: _State,
        weights: Float[Array, "N s"],
        residual: Float[Array, "N s"] | None,
        grown: Bool[Array, "s"],
    ) -> _State:
        """Columns that have grown begin again at other weights, without momentum."""
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
        """d = H_BB⁻¹ r_B and H_{·B} d."""
        if plan.inverse_factors is None:
            factor = self._inverse_factor(plan, system, start, size)
        else:
            factor = plan.inverse_factors[start // size]
        X_B, noise_B, r_B = slice_rows(system.mesh, (plan.X, plan.noise, r), start, size)
        d = factor.T @ (factor @ r_B)
        if system.K is None:
            Hd = product_of_rows(system.mesh, system.kernel, plan.X, X_B, d, system.tile) * plan.valid[:, None]
        else:
            rows = jax.lax.dynamic_slice_in_dim(plan.padded, start, size)
            Hd = system.columns(rows, d)[plan.padded] * plan.valid[:, None]
        return d, add_rows(system.mesh, Hd, noise_B[:, None] * d, start)

    def weights(self, plan: _Plan, state: _State) -> Float[Array, "N s"]:
        """The averaged iterate, in the order of the rows."""
        return _in_order(plan, state.average.w)

    def residual(
        self, plan: _Plan, system: System, targets: Targets, state: _State
    ) -> tuple[Float[Array, "s"], Float[Array, "N s"]]:
        """The residual of the averaged iterate, which is at hand."""
        r = _in_order(plan, state.average.r)
        return jnp.linalg.norm(r, axis=0) / targets.norms, r

    def estimated_error(self, plan: _Plan, system: System, targets: Targets, state: _State) -> Float[Array, "s"]:
        """The estimated error of k(x, X)w̄, as `SAP.error` is stated."""
        return _error(plan, system, targets, state.average)

    def verdict(self, look: Look, targets: Targets) -> Bool[Array, "s"]:
        """As exact as is asked for, by both measures, or to rounding."""
        is_mean = jnp.arange(look.relative.shape[0]) < targets.num_means
        is_exact = look.error <= jnp.where(is_mean, self.error, 3 * self.error)
        return (look.relative <= self.tolerance) & (is_exact | (look.relative <= ROUNDED))

    def gives_up(self, look: Look, targets: Targets, history: list[float], looks: int) -> bool:
        """Whether the error of the means, extrapolated to the last pass, stays above `error`."""
        if not self.may_give_up or targets.num_means == 0:
            return False
        history.append(float(jnp.max(look.error[: targets.num_means])))
        done = len(history)
        if done < GIVE_UP_PASSES or done & (done - 1):
            return False
        now, before = history[-1], history[done // 2 - 1]
        if not (0 < before < np.inf and now < np.inf):
            return False
        return bool(now * (now / before) ** np.log2(looks / done) > self.error)

    def schedule(self, system: System) -> tuple[int, int, float]:
        """A look at the residual after every pass."""
        number, _ = self.blocks(system)
        return self.passes * number, number, 1 / number


def _error(plan: _Plan, system: System, targets: Targets, iterate: _Iterate) -> Float[Array, "s"]:
    """The estimated error of each column at the probes, see `pathgp.posterior.accuracy`, as `SAP.error` is stated."""
    probes, means = plan.probes, targets.num_means
    values = split_product(system.mesh, system.kernel, probes.x, plan.X, iterate.w, system.tile)
    r = iterate.r[probes.neighbours]
    guess = jnp.einsum("pm,pms->ps", probes.block, r)
    if probes.local is not None:
        added = jnp.einsum("pm,pms->ps", probes.local, r)
        values, guess = values + added, guess - added
    deviations = (probes.draws - values)[:, means:]
    v = probes.variance[:, None]
    if deviations.shape[1]:  # a few samples may all be small at a point
        v = jnp.maximum(jnp.mean(deviations**2, axis=1, keepdims=True), 0.1 * v)
    unit = jnp.where(v > 0, jnp.sqrt(v), 1)
    share = slope(deviations / unit, guess[:, means:] / unit) if deviations.shape[1] else SLOPE
    rms = lambda unit: share * jnp.sqrt(jnp.mean((guess / unit) ** 2, axis=0))
    return jnp.maximum(rms(jnp.sqrt(unit**2 + probes.noise)), rms(unit) / FUNCTION_FACTOR)


def _probes(local: Local | None, system: System, targets: Targets, order: Int[Array, "N"]) -> _Probes:
    """Points as far from the data as new rows are, and the blocks around them."""
    number, size = min(PROBES, system.size), min(BLOCK, system.size)
    A, X, noise = (system.everywhere(a) for a in (system.X, system.X, system.noise_diagonal))
    A = A[order[np.arange(number) * system.size // number]]
    B, C = (X[partner] for partner in partners(_strongest(system.kernel, A, X, min(PARTNERS + 1, system.size))))
    x = displaced(A, B, C, X)
    near = _strongest(system.kernel, x, X, size)
    draws = jnp.zeros((number, targets.num_means), x.dtype)
    if targets.draws is not None:
        draws = jnp.concatenate([draws, targets.draws.features.apply(x, targets.draws.weights)], axis=1)

    def around(x: Float[Array, "d"], c: Int[Array, "m"]) -> tuple[Array, Array]:
        K, k = system.kernel(X[c], X[c]), system.kernel(X[c], x[None])[:, 0]
        least = 2 * jnp.finfo(K.dtype).eps * jnp.max(jnp.sum(jnp.abs(K), axis=1))  # that K resolves
        a = definite_solve(K + jnp.diag(jnp.maximum(noise[c], least)), k)
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


def _strongest(kernel: Kernel, x: Float[Array, "p d"], X: Float[Array, "N d"], num: int) -> Int[Array, "p m"]:
    """The rows that are most strongly correlated with each point: a search that any kernel allows."""
    deviation = jnp.sqrt(kernel.diag(X))
    return map_rows(lambda x: smallest(-kernel(x, X) / deviation, num)[1], x, SEARCHED)


def _in_order(plan: _Plan, x: Float[Array, "P s"]) -> Float[Array, "N s"]:
    size = plan.order.shape[0]
    ordered = jnp.zeros((plan.rows, x.shape[1]), x.dtype).at[plan.order].set(x[:size])
    return constrained(plan.mesh, ordered, plan.rows)


def _new_pass(key: PRNGKeyArray, number: int) -> tuple[PRNGKeyArray, Int[Array, "k"]]:
    key, subkey = jax.random.split(key)
    return key, jax.random.permutation(subkey, number)


def _between(a: _Iterate, b: _Iterate, weight: float | Float[Array, "s"]) -> _Iterate:
    """(1 − weight) a + weight b."""
    return jax.tree.map(lambda x, y: x + weight * (y - x), a, b)


def _moved(
    plan: _Plan, z: _Iterate, d: Float[Array, "b s"], Hd: Float[Array, "P s"], start: Int[Array, ""]
) -> _Iterate:
    """w_B + d, and the residual that goes with it."""
    return _Iterate(add_rows(plan.mesh, z.w, d, start), z.r - Hd)
