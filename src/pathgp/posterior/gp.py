"""The model: a kernel, the variance of the observation noise, and a prior mean."""

from functools import partial
from typing import Any

import equinox as eqx
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Shaped

from pathgp import _checks as checks
from pathgp.kernels import Kernel


class GP(eqx.Module):
    """A Gaussian process prior with observation noise, y = f(x) + ε.

    Parameters
    ----------
    kernel
        Covariance of f, for instance `kernels.Matern32(0.5)`.
    noise
        Variance of ε: one positive number, or one per row of the data.
    mean
        Constant prior mean of f.
    """

    kernel: Kernel
    noise: Float[Array, "..."] = eqx.field(converter=partial(checks.as_positive, name="noise"))
    mean: Float[Array, ""] = eqx.field(converter=partial(checks.as_scalar, name="mean"), default=0.0)

    def __check_init__(self) -> None:
        # A name, or a class instead of an instance, would fail much later.
        if isinstance(self.kernel, str | type | None):
            raise ValueError(f"kernel must be a kernel such as kernels.Matern32(1.0), but it is {self.kernel!r}.")

    def __repr__(self) -> str:
        return eqx.tree_pformat(self, short_arrays=False)


GP_EXAMPLE = "a GP such as GP(kernels.Matern32(0.5), noise=0.1)"
"""Description of a valid GP in error messages."""


def named_parts(gp: GP) -> dict[str, Any]:
    """Return the parts of a GP by the names that error messages use."""
    return {"the kernel": gp.kernel, "the noise": gp.noise, "the mean": gp.mean}


def check_data(
    X: Shaped[ArrayLike, "..."], y: Shaped[ArrayLike, "..."]
) -> tuple[Float[Array, "N d"], Float[Array, "N"]]:
    """Return X and y as arrays. Raises `ValueError` if they are not valid data."""
    X = checks.as_inputs(X)
    return X, checks.as_target(y, X.shape[0])
