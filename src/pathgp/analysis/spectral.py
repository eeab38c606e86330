"""The implicit bias of stochastic gradient descent (section 3.4 and appendix D of the paper), computed.

With K = UΛUᵀ, the spectral basis functions u⁽ⁱ⁾(·) = Σ_j U_ji/√λ_i k(·, x_j) are orthonormal in the RKHS. Gradient
descent converges quickly along those of large eigenvalues, which are large where the data are dense, and slowly along
the others. All computations are in float64 on the host, whatever the dtype of the data. Indices start at zero.
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
from pathgp.system.dense import kernel_float64
from pathgp.system.system import System

__all__ = ["nystrom_basis", "regions", "spectral_basis"]

ROWS = 4096
"""Rows of a kernel matrix held in memory at once."""

REGIONS = 3
"""Folded into the key of a posterior, so that the rows drawn here are independent of its other draws."""


class Basis(eqx.Module):
    """Functions u⁽ⁱ⁾(·) = Σ_j coefficients_ji k(·, points_j), orthonormal in the RKHS, in order of decreasing
    eigenvalue.

    The eigenvalues λ_i are their squared norms ‖u⁽ⁱ⁾(X)‖² at the data.

    Attributes
    ----------
    kernel
        The kernel k.
    points
        The M points.
    eigenvalues
        λ_i, the largest first.
    coefficients
        One column per function.
    """

    kernel: eqx.AbstractVar[Kernel]
    points: eqx.AbstractVar[Float[Array, "M d"]]
    eigenvalues: eqx.AbstractVar[Float64[np.ndarray, "r"]]
    coefficients: eqx.AbstractVar[Float64[np.ndarray, "M r"]]

    def __getitem__(self, index: int | slice) -> Function:
        """Return u⁽ⁱ⁾ as a function to evaluate, add and differentiate, in JAX's default dtype.

        In float32 its error is about 1e-7 √(λ₁/λ_i): use `values` for small eigenvalues.
        """
        return Function(Canonical(self.kernel, self.points), checks.as_floats(self.coefficients[:, index]))

    def values(self, x: Shaped[ArrayLike, "..."]) -> Float64[np.ndarray, "n r"]:
        """Return u⁽ⁱ⁾(x) in float64, one column per i.

        Parameters
        ----------
        x
            Points, one per row. Raises `ValueError` if their number of inputs is not that of the basis.
        """
        x = checks.as_inputs(x, "x")
        if x.shape[1] != self.points.shape[1]:
            raise ValueError(f"x has {x.shape[1]} inputs, but the basis takes {self.points.shape[1]}.")
        tiles = (kernel_float64(self.kernel, x[i : i + ROWS], self.points) for i in range(0, x.shape[0], ROWS))
        return np.concatenate([tile @ self.coefficients for tile in tiles])


class SpectralBasis(Basis):
    """The spectral basis functions of the kernel matrix of all rows, as many as float64 resolves.

    A function in the span of the k(·, x_j) has two sets of coordinates, θ(·) = Σ_j θ_j k(·, x_j) = Σ_i w_i u⁽ⁱ⁾(·).
    `coordinates` maps the representer weights θ to w, and `weights` maps w to θ.

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
        """The eigenvectors U of K, one per column."""
        return self.coefficients * np.sqrt(self.eigenvalues)

    def coordinates(self, theta: Shaped[ArrayLike, "N *s"]) -> Float64[np.ndarray, "r *s"]:
        """Return the coordinates w = Λ^½ Uᵀθ in the basis.

        Parameters
        ----------
        theta
            Representer weights θ.
        """
        return (self.coefficients * self.eigenvalues).T @ np.asarray(theta, dtype=np.float64)

    def weights(self, w: Shaped[ArrayLike, "r *s"]) -> Float64[np.ndarray, "N *s"]:
        """Return the representer weights θ = UΛ^−½ w.

        Parameters
        ----------
        w
            Coordinates in the basis.
        """
        return self.coefficients @ np.asarray(w, dtype=np.float64)

    def projections(self, values: Shaped[ArrayLike, "N *s"]) -> Float64[np.ndarray, "r *s"]:
        """Return the inner products ⟨f, u⁽ⁱ⁾⟩ = Σ_j U_ji/√λ_i f(x_j).

        They need only the values f(X) at the data, for every f in the RKHS.

        Parameters
        ----------
        values
            f(X), one column per function.
        """
        return self.coefficients.T @ np.asarray(values, dtype=np.float64)

    def seminorm(self, theta: Shaped[ArrayLike, "N *s"], index: slice = slice(None)) -> Float64[np.ndarray, "*s"]:
        """Return the interpolation seminorm: the norm of the projection of θ(·) on the functions of an index set I.

        Its square is θᵀUΛ_I Uᵀθ. Over all indices it is the RKHS norm.

        Parameters
        ----------
        theta
            Representer weights θ.
        index
            The index set I.
        """
        return np.asarray(np.linalg.norm(self.coordinates(theta)[index], axis=0))


class NystromBasis(Basis):
    """Basis of span{k(·, z)}: unit functions that are largest at the data, each orthogonal to those before it.

    This is the Courant–Fischer property of u⁽ⁱ⁾ within a subspace (Rayleigh and Ritz). λ_i is at most that of all rows,
    and equal to it if the points z are all rows. If the noise differs between rows, the data are weighted by its
    inverse: λ_i = Σ_n σ²/Σ_nn u⁽ⁱ⁾(x_n)² with the mean noise σ².
    """

    kernel: Kernel
    points: Float[Array, "M d"]
    eigenvalues: Float64[np.ndarray, "r"]
    coefficients: Float64[np.ndarray, "M r"]


def spectral_basis(kernel: Kernel, X: Shaped[ArrayLike, "..."]) -> SpectralBasis:
    """Return the spectral basis from the eigendecomposition of K = k(X, X).

    It takes O(N³) time and O(N²) memory, so it is for a few thousand rows.

    Parameters
    ----------
    kernel
        The kernel k.
    X
        The N rows of the data.
    """
    X = checks.as_inputs(X)
    eigenvalues, U = _eigen(kernel_float64(kernel, X, X))
    return SpectralBasis(kernel, X, eigenvalues, U / np.sqrt(eigenvalues))


def nystrom_basis(system: System, points: Shaped[ArrayLike, "..."]) -> NystromBasis:
    """Return the spectral basis within the span of M points, by one tiled pass over the data in O(N M²) time.

    Parameters
    ----------
    system
        Kernel, data and noise.
    points
        The M points z.
    """
    z, system = checks.as_inputs(points, "points"), system.gathered()
    s, P = _eigen(kernel_float64(system.kernel, z, z))
    orthonormal = P / np.sqrt(s)
    gram = np.zeros((len(s), len(s)))
    for i in range(0, system.size, ROWS):
        # Weights are relative to the mean noise, so that equal noise leaves the eigenvalues as they are.
        precision = system.mean_noise / system.noise_diagonal[i : i + ROWS]
        rows = kernel_float64(system.kernel, system.X[i : i + ROWS], z) @ orthonormal
        rows *= np.sqrt(np.asarray(precision, dtype=np.float64))[:, None]
        gram += rows.T @ rows
    eigenvalues, V = _eigen(gram)
    return NystromBasis(system.kernel, z, eigenvalues, orthonormal @ V)


def _eigen(K: Float64[np.ndarray, "N N"]) -> tuple[Float64[np.ndarray, "r"], Float64[np.ndarray, "N r"]]:
    """Return the eigenvalues above rounding, in descending order, and their eigenvectors."""
    eigenvalues, U = np.linalg.eigh(K)
    eigenvalues, U = eigenvalues[::-1], U[:, ::-1]
    resolved = int(np.sum(eigenvalues > len(K) * np.finfo(np.float64).eps * eigenvalues[0]))
    U = U[:, :resolved]
    signs = np.sign(U[np.argmax(np.abs(U), axis=0), np.arange(resolved)])  # signs must not depend on LAPACK
    return eigenvalues[:resolved], U * signs


class DescentBound(eqx.Module):
    """Bounds on the error of Polyak-averaged SGD after t steps from zero (lemma 1 and proposition 1 of the paper).

    The gradient is that of ‖y − Kα‖²/2σ² + αᵀKα/2, not of the scaled objective of `solvers.SGD`. The learning rate is η
    < σ²/λ₁(λ₁ + σ²). The gradient noise is G-sub-Gaussian: along any unit vector its tails are at most those of N(0,
    G²). Then all bounds hold at once with probability 1 − δ.

    Directions that float64 does not resolve are left out. There λ_i < 1e-15 N λ₁, and the error, at most √λ_i ‖y‖/σ²,
    is negligible compared with the others.

    Attributes
    ----------
    basis
        Spectral basis of the data.
    noise
        Noise variance σ².
    y_norm
        ‖y‖.
    learning_rate
        η. Raises `ValueError` if it is not below `largest_learning_rate`.
    gradient_noise
        G.
    steps
        t, at least 1.
    delta
        δ, the probability with which a bound may fail.
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
        checks.require_at_least(self.steps, 1, "steps")
        checks.require_at_least(self.gradient_noise, 0, "gradient_noise")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must be between 0 and 1, but it is {self.delta}.")

    def scale(self, size: int) -> float:
        """Return ‖y‖/ησ²t + G √(2/t log |I|/δ), the common factor of all bounds for |I| directions."""
        bias = self.y_norm / (self.learning_rate * self.noise * self.steps)
        return bias + self.gradient_noise * math.sqrt(2 / self.steps * math.log(size / self.delta))

    @property
    def eigenvectors(self) -> Float64[np.ndarray, "r"]:
        """Lemma 1: the bound on |u_iᵀ(α* − ᾱ)|, the error of the representer weights along each eigenvector."""
        return self.scale(self.basis.points.shape[0]) / self.basis.eigenvalues

    @property
    def projections(self) -> Float64[np.ndarray, "r"]:
        """Proposition 1: the bound on the RKHS norm of the error of the mean, projected on each u⁽ⁱ⁾."""
        return self.scale(self.basis.points.shape[0]) / np.sqrt(self.basis.eigenvalues)

    def seminorm(self, index: slice = slice(None)) -> float:
        """Return the bound on a subspace: on the interpolation seminorm of the error for this index set."""
        eigenvalues = self.basis.eigenvalues[index]
        return self.scale(len(eigenvalues)) * float(np.sqrt(np.sum(1 / eigenvalues)))

    def pointwise(self, x: Shaped[ArrayLike, "..."]) -> Float64[np.ndarray, "n"]:
        """Return the bound of the corollary, on |μ_SGD(x) − μ(x)|: large where functions of small eigenvalues are
        large.
        """
        size = self.basis.points.shape[0]
        return self.scale(size) * np.sum(np.abs(self.basis.values(x)) / np.sqrt(self.basis.eigenvalues), axis=1)


def largest_learning_rate(basis: SpectralBasis, noise: float) -> float:
    """Return σ²/λ₁(λ₁ + σ²), the learning rate below which the bounds of `DescentBound` hold.

    Parameters
    ----------
    basis
        Spectral basis of the data.
    noise
        Noise variance σ².
    """
    largest = float(basis.eigenvalues[0])
    return noise / (largest * (largest + noise))


class Regions(NamedTuple):
    """Scores of each point for the three regions of the paper, from 0 to 1, with sum 1."""

    interpolation: Float64[np.ndarray, "n"]
    extrapolation: Float64[np.ndarray, "n"]
    prior: Float64[np.ndarray, "n"]


def basis_of(posterior: Posterior, num_points: int = 2000) -> Basis:
    """Return the spectral basis of a posterior: exact up to `num_points` rows, above that on a Nyström subspace.

    Half of the points of the subspace are random rows, which lie where most data are. The other half are greedy pivots,
    each the row that the pivots before it determine least, so that no part of the data is left out.

    Parameters
    ----------
    posterior
        The posterior.
    num_points
        Dimension of the subspace, at least 2.
    """
    posterior = posterior.gathered()  # on one device, without padding rows
    system = posterior.system
    checks.require_at_least(num_points, 2, "num_points")
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
    """Return to what share points lie in the interpolation, extrapolation and prior regions of a posterior.

    k(x, ·) is split in the RKHS into three parts: its projection on the spectral basis functions with λ_i ≥ `smallest`,
    its projection on the other basis functions, and the rest, which is orthogonal to all functions that the data
    determine. The squared norms of the parts add up to k(x, x), and their shares are the scores:

        interpolation = Σ_{λ_i ≥ σ²} u⁽ⁱ⁾(x)² / k(x, x),   extrapolation = Σ_{λ_i < σ²} u⁽ⁱ⁾(x)² / k(x, x),
        prior = Var(f(x) | f(X)) / k(x, x).

    The posterior mean keeps the share λ_i/(λ_i + σ²) of a function along u⁽ⁱ⁾. With the default of `smallest`, the data
    therefore outweigh the prior in exactly the directions of interpolation. If the noise differs between rows, the
    values at the data are weighted by its inverse.

    With more rows than `basis_of` decomposes exactly, the prior score is an upper bound, because a subspace explains
    less.

    Parameters
    ----------
    posterior
        The posterior.
    x
        Points, one per row.
    basis
        Basis from `basis_of`, to be used again in several calls. None computes it.
    smallest
        Smallest eigenvalue of an interpolation direction. None is the mean noise variance σ².
    """
    posterior = posterior.gathered()
    basis = basis_of(posterior) if basis is None else basis
    smallest = float(posterior.system.mean_noise) if smallest is None else smallest
    x = checks.as_inputs(x, "x")
    shares = basis.values(x) ** 2 / np.asarray(posterior.gp.kernel.diag(x), dtype=np.float64)[:, None]
    top = basis.eigenvalues >= smallest
    # Rounding can take the sum of the shares above 1.
    explained = np.minimum(shares.sum(axis=1), 1)
    interpolation = np.minimum(shares[:, top].sum(axis=1), explained)
    return Regions(interpolation, explained - interpolation, 1 - explained)
