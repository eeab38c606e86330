"""The model: a kernel, the noise of observations and a prior mean."""

from functools import partial
from typing import Any

import equinox as eqx
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Shaped

from pathgp import _checks as checks
from pathgp.kernels import Kernel


class GP(eqx.Module):
    """A Gaussian process prior and the noise of its observations, y = f(x) + ε.

    `noise` is the variance of ε: one number, or one for each row of the data. `mean` is a constant.
    """

    kernel: Kernel
    noise: Float[Array, "..."] = eqx.field(converter=partial(checks.positive, name="noise"))
    mean: Float[Array, ""] = eqx.field(converter=partial(checks.scalar, name="mean"), default=0.0)

    def __check_init__(self) -> None:
        if isinstance(self.kernel, str | type | None):
            raise ValueError(f"kernel must be a kernel such as kernels.Matern32(1.0), but it is {self.kernel!r}.")

    def __repr__(self) -> str:
        return eqx.tree_pformat(self, short_arrays=False)


PROCESS = "a GP such as GP(kernels.Matern32(0.5), noise=0.1)"


def parts(gp: GP) -> dict[str, Any]:
    """What a process is, by name."""
    return {"the kernel": gp.kernel, "the noise": gp.noise, "the mean": gp.mean}


def check_data(
    X: Shaped[ArrayLike, "..."], y: Shaped[ArrayLike, "..."]
) -> tuple[Float[Array, "N d"], Float[Array, "N"]]:
    """The data as arrays, refused with a sentence if they are not fit to learn from."""
    X = checks.inputs(X)
    return X, checks.outputs(y, X.shape[0])
