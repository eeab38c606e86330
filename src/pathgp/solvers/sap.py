"""Sketch and project: exact projections on blocks of the data, the workhorse."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from pathgp import checks
from pathgp.local import Local
from pathgp.neighbours import Exhaustive, in_neighbourhoods
from pathgp.sharding import add_rows, constrained, padded_rows, slice_rows
from pathgp.solvers.base import Iterative
from pathgp.solvers.blocks import damped_inverse_factor
from pathgp.system import System, Targets
from pathgp.tiles import product_of_rows

PROBES = 256


class _Plan(eqx.Module):
    """The rows in the order of a partition, block after block, the last of them padding; so they are split too."""

    X: Float[Array, "P d"]
    noise: Float[Array, "P"]
    valid: Bool[Array, "P"]
    order: Int[Array, "N"]
    padded: Int[Array, "P"]
    inverse_factors: Float[Array, "k b b"] | None
    probes: "_Probes | None"
    rows: int = eqx.field(static=True)
    mesh: Mesh | None = eqx.field(static=True)


class _Probes(eqx.Module):
    """Some rows of the data, and the local projection at them."""

    rows: Int[Array, "p"]
    neighbours: Int[Array, "p m"]
    coefficients: Float[Array, "p m"]


class _Iterate(eqx.Module):
    w: Float[Array, "P s"]
    r: Float[Array, "P s"]


class _State(eqx.Module):
    iterate: _Iterate
    momentum: _Iterate
    average: _Iterate
    unfitted: Float[Array, "p s"]
    change: Float[Array, "s"]
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

    The first two passes are those of the plain method.

    A pass that changes the fitted values Kw̄ of a column by less than `settle` times what they leave unexplained,
    ‖b − Kw̄‖, ends its solve, as does a residual within `tolerance`: what is left then lies in directions that hardly
    matter to predictions. Where `local` is to finish the solve, it does so for the fitted values of that rule too, at
    `PROBES` rows.

    The partition is random, so that each block sees something of everything. Where `local` is to finish the solve, the
    blocks are neighbourhoods: alone they would do worse, but what they leave is at their borders, which `local` mends
    (`benchmarks/rivals.py`).

    The inverse Cholesky factors of the blocks are kept if they take at most `factor_bytes`, and computed at every
    visit if they would take more.
    """

    passes: int = 20
    block_size: int = 2048
    averaging: float | None = 4.0
    accelerated: bool = True
    factor_bytes: int = 512 * 2**20
    tolerance: float = 0.01
    settle: float = 0.0
    local: Local | None = None
    max_seconds: float = float("inf")
    limits: ClassVar[tuple[str, ...]] = ("passes", "settle", *Iterative.limits)

    def __check_init__(self) -> None:
        checks.at_least(self.passes, 1, "SAP.passes")
        checks.at_least(self.block_size, 1, "SAP.block_size")
        checks.at_least(0.0 if self.averaging is None else self.averaging, 0, "SAP.averaging")

    def counts_on(self, system: System) -> Local | None:
        """What it settles by."""
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
        probes = None if self.local is None else _probes(self.local, system, order)
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
        first, change = _Iterate(w, r), jnp.full(w.shape[1], jnp.inf, w.dtype)
        unfitted = _unfitted(plan, first)
        return _State(first, first, first, unfitted, change, jnp.arange(number), jnp.zeros((), int), key)

    def step(self, plan: _Plan, system: System, targets: Targets, state: _State) -> _State:
        """One block projection."""
        number, size = self.blocks(system)
        key, sequence = jax.lax.cond(
            state.steps % number == 0,
            lambda: _new_pass(state.key, number),
            lambda: (state.key, state.sequence),
        )
        start = sequence[state.steps % number] * size
        if not self.accelerated:
            d, Hd = self._project(plan, system, state.iterate.r, start, size)
            iterate = momentum = _moved(plan, state.iterate, d, Hd, start)
        else:
            gamma = jnp.maximum(1, (state.steps + 2) / (2 * number))
            alpha = 1 / (gamma * number)
            z = _between(state.iterate, state.momentum, alpha)
            d, Hd = self._project(plan, system, z.r, start, size)
            iterate = _moved(plan, z, d, Hd, start)
            momentum = _moved(plan, state.momentum, gamma * d, gamma * Hd, start)
        rate = 1.0 if self.averaging is None else (self.averaging + 1) / (state.steps + self.averaging + 1)
        average = _between(state.average, iterate, rate)
        steps = state.steps + 1
        unfitted, change = jax.lax.cond(
            steps % number == 0,
            lambda: _change(_unfitted(plan, average), state.unfitted),
            lambda: (state.unfitted, state.change),
        )
        state = _State(iterate, momentum, average, unfitted, change, sequence, steps, key)
        return constrained(system.mesh, state, plan.X.shape[0])

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

    def verdict(
        self, relative: Float[Array, "s"], plan: _Plan, system: System, targets: Targets, state: _State
    ) -> Bool[Array, "s"]:
        """Within the tolerance, or settled."""
        return (relative <= self.tolerance) | (state.change <= self.settle * jnp.linalg.norm(state.unfitted, axis=0))

    def schedule(self, system: System) -> tuple[int, int, float]:
        """A look at the residual after every pass."""
        number, _ = self.blocks(system)
        return self.passes * number, number, 1 / number


def _unfitted(plan: _Plan, iterate: _Iterate) -> Float[Array, "p s"]:
    """b − Kw = r + Σw; at the probes less what the local projection adds to Kw."""
    unfitted = iterate.r + plan.noise[:, None] * iterate.w
    if plan.probes is None:
        return unfitted
    local = jnp.einsum("pm,pms->ps", plan.probes.coefficients, iterate.r[plan.probes.neighbours])
    return unfitted[plan.probes.rows] - local


def _probes(local: Local, system: System, order: Int[Array, "N"]) -> _Probes:
    """Rows evenly spaced in the order of the blocks, and their neighbours' places in it."""
    number = min(PROBES, system.size)
    rows = jnp.arange(number) * system.size // number
    places = jnp.zeros_like(order).at[order].set(jnp.arange(system.size))
    coefficients, neighbours = local.projection(system, search=Exhaustive).coefficients(system.X[order[rows]])
    return _Probes(rows, places[neighbours], coefficients)


def _change(new: Float[Array, "p s"], old: Float[Array, "p s"]) -> tuple[Float[Array, "p s"], Float[Array, "s"]]:
    """The new values, and how far each column moved."""
    return new, jnp.linalg.norm(new - old, axis=0)


def _in_order(plan: _Plan, x: Float[Array, "P s"]) -> Float[Array, "N s"]:
    size = plan.order.shape[0]
    ordered = jnp.zeros((plan.rows, x.shape[1]), x.dtype).at[plan.order].set(x[:size])
    return constrained(plan.mesh, ordered, plan.rows)


def _new_pass(key: PRNGKeyArray, number: int) -> tuple[PRNGKeyArray, Int[Array, "k"]]:
    key, subkey = jax.random.split(key)
    return key, jax.random.permutation(subkey, number)


def _between(a: _Iterate, b: _Iterate, weight: float | Float[Array, ""]) -> _Iterate:
    """(1 − weight) a + weight b."""
    return jax.tree.map(lambda x, y: x + weight * (y - x), a, b)


def _moved(
    plan: _Plan, z: _Iterate, d: Float[Array, "b s"], Hd: Float[Array, "P s"], start: Int[Array, ""]
) -> _Iterate:
    """w_B + d, and the residual that goes with it."""
    return _Iterate(add_rows(plan.mesh, z.w, d, start), z.r - Hd)
