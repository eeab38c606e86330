"""The implicit bias of stochastic gradient descent (section 3.4 and appendix D of the paper), in numbers.

With K = UΛUᵀ, the spectral basis functions u⁽ⁱ⁾(·) = Σ_j U_ji/√λ_i k(·, x_j) are orthonormal in the RKHS. Descent
converges quickly along those of large eigenvalues, which live where the data are dense, and slowly along the others.
All of this is done in float64 on the host, whatever the precision of the data, and indices count from zero.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Float64, Shaped

from pathgp import _checks as checks
from pathgp.functions import Canonical, Function
from pathgp.kernels import Kernel
from pathgp.posterior.posterior import Posterior
from pathgp.solvers.inducing import points as inducing
from pathgp.system.dense import wide
from pathgp.system.system import System

ROWS = 4096
"""Rows of a kernel matrix that are held at once."""

REGIONS = 3
"""So that the key of a posterior draws other rows here than elsewhere."""


class Basis(eqx.Module):
    """Functions u⁽ⁱ⁾(·) = Σ_j coefficients_ji k(·, points_j), orthonormal in the RKHS, the largest at the data first.

    Their eigenvalues λ_i are their squared norms ‖u⁽ⁱ⁾(X)‖² at the data.
    """

    kernel: eqx.AbstractVar[Kernel]
    points: eqx.AbstractVar[Float[Array, "M d"]]
    eigenvalues: eqx.AbstractVar[Float64[np.ndarray, "r"]]
    coefficients: eqx.AbstractVar[Float64[np.ndarray, "M r"]]

    def __getitem__(self, index: int | slice) -> Function:
        """u⁽ⁱ⁾ as a function to evaluate, add and differentiate, in the precision of JAX.

        In float32 it is off by about 1e-7 √(λ₁/λ_i): take `values` for small eigenvalues.
        """
        return Function(Canonical(self.kernel, self.points), checks.floats(self.coefficients[:, index]))

    def values(self, x: Shaped[ArrayLike, "..."]) -> Float64[np.ndarray, "n r"]:
        """u⁽ⁱ⁾(x), a column for each i."""
        x = checks.inputs(x, "x")
        if x.shape[1] != self.points.shape[1]:
            raise ValueError(f"x has {x.shape[1]} inputs, but the basis takes {self.points.shape[1]}.")
        tiles = (wide(self.kernel, x[i : i + ROWS], self.points) for i in range(0, x.shape[0], ROWS))
        return np.concatenate([tile @ self.coefficients for tile in tiles])


class SpectralBasis(Basis):
    """The spectral basis functions of the kernel matrix of all rows, as many as float64 resolves.

    A function of the representer weight space has two sets of coordinates, θ(·) = Σ_j θ_j k(·, x_j) = Σ_i w_i u⁽ⁱ⁾(·):
    `coordinates` and `weights` lead from one to the other.

    >>> import jax.numpy as jnp
    >>> from pathgp.kernels import RBF
    >>> basis = spectral_basis(RBF(), jnp.array([[0.0], [1.0], [9.0]]))
    >>> theta = basis.weights(jnp.array([0.0, 3.0, 4.0]))
    >>> print(round(float(basis.seminorm(theta)), 6), round(float(basis.seminorm(theta, slice(0, 2))), 6))
    5.0 3.0
    """

    kernel: Kernel
    points: Float[Array, "N d"]
    eigenvalues: Float64[np.ndarray, "r"]
    coefficients: Float64[np.ndarray, "N r"]

    @property
    def eigenvectors(self) -> Float64[np.ndarray, "N r"]:
        """U, a column each."""
        return self.coefficients * np.sqrt(self.eigenvalues)

    def coordinates(self, theta: Shaped[ArrayLike, "N *s"]) -> Float64[np.ndarray, "r *s"]:
        """w = Λ^½ Uᵀθ."""
        return (self.coefficients * self.eigenvalues).T @ np.asarray(theta, dtype=np.float64)

    def weights(self, w: Shaped[ArrayLike, "r *s"]) -> Float64[np.ndarray, "N *s"]:
        """θ = UΛ^−½ w."""
        return self.coefficients @ np.asarray(w, dtype=np.float64)

    def projections(self, values: Shaped[ArrayLike, "N *s"]) -> Float64[np.ndarray, "r *s"]:
        """⟨f, u⁽ⁱ⁾⟩ = Σ_j U_ji/√λ_i f(x_j) for any f of the RKHS, from its values f(X) at the data alone."""
        return self.coefficients.T @ np.asarray(values, dtype=np.float64)

    def seminorm(self, theta: Shaped[ArrayLike, "N *s"], index: slice = slice(None)) -> Float64[np.ndarray, "*s"]:
        """The interpolation seminorm: the norm of the projection of θ(·) on the functions of an index set.

        Its square is θᵀUΛ_I Uᵀθ; over all indices, that of the RKHS norm.
        """
        return np.asarray(np.linalg.norm(self.coordinates(theta)[index], axis=0))


class NystromBasis(Basis):
    """Of span{k(·, z)} the unit functions that are largest at the data, each orthogonal to those before it.

    This is the Courant–Fischer property of u⁽ⁱ⁾ within a subspace (Rayleigh and Ritz): λ_i is at most that of all rows,
    and equal to it where the points z are all rows. Where noise differs from row to row, the data are weighted by its
    inverse, λ_i = Σ_n σ²/Σ_nn u⁽ⁱ⁾(x_n)² with the mean noise σ².
    """

    kernel: Kernel
    points: Float[Array, "M d"]
    eigenvalues: Float64[np.ndarray, "r"]
    coefficients: Float64[np.ndarray, "M r"]


def spectral_basis(kernel: Kernel, X: Shaped[ArrayLike, "..."]) -> SpectralBasis:
    """The eigendecomposition of K = k(X, X): O(N³) time and O(N²) memory, for some thousand rows."""
    X = checks.inputs(X)
    eigenvalues, U = _eigen(wide(kernel, X, X))
    return SpectralBasis(kernel, X, eigenvalues, U / np.sqrt(eigenvalues))


def nystrom_basis(system: System, points: Shaped[ArrayLike, "..."]) -> NystromBasis:
    """One pass over the data and O(N M²) time for M points, in tiles."""
    z, system = checks.inputs(points, "points"), system.gathered()
    s, P = _eigen(wide(system.kernel, z, z))
    orthonormal = P / np.sqrt(s)
    gram = np.zeros((len(s), len(s)))
    for i in range(0, system.size, ROWS):
        precision = system.mean_noise / system.noise_diagonal[i : i + ROWS]
        rows = wide(system.kernel, system.X[i : i + ROWS], z) @ orthonormal
        rows *= np.sqrt(np.asarray(precision, dtype=np.float64))[:, None]
        gram += rows.T @ rows
    eigenvalues, V = _eigen(gram)
    return NystromBasis(system.kernel, z, eigenvalues, orthonormal @ V)


def _eigen(K: Float64[np.ndarray, "N N"]) -> tuple[Float64[np.ndarray, "r"], Float64[np.ndarray, "N r"]]:
    """Eigenvalues in descending order, and their vectors, without those that are rounding."""
    eigenvalues, U = np.linalg.eigh(K)
    eigenvalues, U = eigenvalues[::-1], U[:, ::-1]
    resolved = int(np.sum(eigenvalues > len(K) * np.finfo(np.float64).eps * eigenvalues[0]))
    U = U[:, :resolved]
    signs = np.sign(U[np.argmax(np.abs(U), axis=0), np.arange(resolved)])  # so that no picture depends on LAPACK
    return eigenvalues[:resolved], U * signs


class DescentBound(eqx.Module):
    """How far Polyak-averaged SGD can be from the posterior mean after t steps from zero (lemma 1 and proposition 1).

    The gradient is that of ‖y − Kα‖²/2σ² + αᵀKα/2, not of the scaled objective of `solvers.SGD`, with a learning rate
    η < σ²/λ₁(λ₁ + σ²) and noise that is G-sub-Gaussian: along any unit vector its tails are at most those of N(0, G²).
    Then all of these hold at once with probability 1 − δ.

    Directions which float64 does not resolve are left out: there λ_i < 1e-15 N λ₁, and the error, at most √λ_i ‖y‖/σ²,
    can be neglected beside the others.
    """

    basis: SpectralBasis
    noise: float
    y_norm: float
    learning_rate: float
    gradient_noise: float
    steps: int
    delta: float = 0.05

    def __check_init__(self) -> None:
        largest = largest_learning_rate(self.basis, self.noise)
        if not 0 < self.learning_rate < largest:
            raise ValueError(
                f"learning_rate must be between 0 and σ²/λ₁(λ₁ + σ²) = {largest:.3g}, but it is {self.learning_rate}: "
                "the bounds hold for such rates alone."
            )
        checks.at_least(self.steps, 1, "steps")
        checks.at_least(self.gradient_noise, 0, "gradient_noise")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must be between 0 and 1, but it is {self.delta}.")

    def scale(self, size: int) -> float:
        """‖y‖/ησ²t + G √(2/t log |I|/δ), which every bound for |I| directions is a multiple of."""
        bias = self.y_norm / (self.learning_rate * self.noise * self.steps)
        return bias + self.gradient_noise * math.sqrt(2 / self.steps * math.log(size / self.delta))

    @property
    def eigenvectors(self) -> Float64[np.ndarray, "r"]:
        """Lemma 1: of |u_iᵀ(α* − ᾱ)|, the error of the representer weights along each eigenvector."""
        return self.scale(self.basis.points.shape[0]) / self.basis.eigenvalues

    @property
    def projections(self) -> Float64[np.ndarray, "r"]:
        """Proposition 1: of the RKHS norm of the error of the mean projected on each u⁽ⁱ⁾."""
        return self.scale(self.basis.points.shape[0]) / np.sqrt(self.basis.eigenvalues)

    def seminorm(self, index: slice = slice(None)) -> float:
        """The same on a subspace: of the interpolation seminorm of the error, for this index set alone."""
        eigenvalues = self.basis.eigenvalues[index]
        return self.scale(len(eigenvalues)) * float(np.sqrt(np.sum(1 / eigenvalues)))

    def pointwise(self, x: Shaped[ArrayLike, "..."]) -> Float64[np.ndarray, "n"]:
        """The corollary: of |μ_SGD(x) − μ(x)|, large where functions of small eigenvalues are large."""
        size = self.basis.points.shape[0]
        return self.scale(size) * np.sum(np.abs(self.basis.values(x)) / np.sqrt(self.basis.eigenvalues), axis=1)


def largest_learning_rate(basis: SpectralBasis, noise: float) -> float:
    """σ²/λ₁(λ₁ + σ²), below which the bounds hold."""
    largest = float(basis.eigenvalues[0])
    return noise / (largest * (largest + noise))


class Regions(NamedTuple):
    """To what share each point lies in each of the paper's three regions: scores from 0 to 1 whose sum is 1."""

    interpolation: Float64[np.ndarray, "n"]
    extrapolation: Float64[np.ndarray, "n"]
    prior: Float64[np.ndarray, "n"]


def basis_of(posterior: Posterior, num_points: int = 2000) -> Basis:
    """The spectral basis of a posterior: exact up to `num_points` rows, on a Nyström subspace of so many above.

    Half of its points are rows at random, which are where most data are, and half are those that the others tell least
    of, so that nothing is left out.
    """
    posterior = posterior.gathered()  # without rows of padding
    system = posterior.system
    checks.at_least(num_points, 2, "num_points")
    if system.size <= num_points:
        return nystrom_basis(system, system.X) if system.noise.ndim else spectral_basis(system.kernel, system.X)
    random_key, greedy_key = jax.random.split(jax.random.fold_in(posterior.key, REGIONS))
    random = inducing.random_subset(system.X, num_points - num_points // 2, key=random_key)
    greedy = inducing.greedy(system.kernel, system.X, num_points // 2, key=greedy_key)
    return nystrom_basis(system, jnp.concatenate([random, greedy]))


def regions(
    posterior: Posterior,
    x: Shaped[ArrayLike, "..."],
    *,
    basis: Basis | None = None,
    smallest: float | None = None,
) -> Regions:
    """Whether points lie in the prior, the interpolation or the extrapolation region of a posterior.

    k(x, ·) is split in the RKHS: into its projection on the spectral basis functions with λ_i ≥ `smallest`, on the
    others, and the rest, which is orthogonal to everything that the data can tell. Their squared norms add up to
    k(x, x), and their shares are the scores:

        interpolation = Σ_{λ_i ≥ σ²} u⁽ⁱ⁾(x)² / k(x, x),   extrapolation = Σ_{λ_i < σ²} u⁽ⁱ⁾(x)² / k(x, x),
        prior = Var(f(x) | f(X)) / k(x, x).

    The default of `smallest` is the noise variance σ²: of a function along u⁽ⁱ⁾ the posterior mean keeps the share
    λ_i/(λ_i + σ²), so the data outweigh the prior exactly in the directions of interpolation. With noise that differs
    from row to row, the values at the data are weighted by its inverse.

    On more rows than `basis_of` decomposes exactly, the prior score is an upper bound: a subspace explains less. A
    basis that is kept serves any number of calls.
    """
    posterior = posterior.gathered()
    basis = basis_of(posterior) if basis is None else basis
    smallest = float(posterior.system.mean_noise) if smallest is None else smallest
    x = checks.inputs(x, "x")
    shares = basis.values(x) ** 2 / np.asarray(posterior.gp.kernel.diag(x), dtype=np.float64)[:, None]
    top = basis.eigenvalues >= smallest
    explained = np.minimum(shares.sum(axis=1), 1)
    interpolation = np.minimum(shares[:, top].sum(axis=1), explained)
    return Regions(interpolation, explained - interpolation, 1 - explained)
