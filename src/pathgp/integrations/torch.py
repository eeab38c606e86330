"""Posterior functions for PyTorch: called with tensors and differentiated by autograd. Install PyTorch yourself."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pathgp.functions import pad_points
from pathgp.linalg.tiles import pad_rows

__all__ = ["as_torch"]


def as_torch(f: Callable[[Float[Array, "n d"]], Float[Array, "n *s"]]) -> Callable[[Any], Any]:
    """Return the same function for tensors, (…, d) ↦ (…) or (…, samples), with gradients for autograd.

    Values are computed in JAX's default dtype and returned in that of the tensor. The backward pass is one
    vector-Jacobian product of JAX, and cannot be differentiated again.

    A posterior sample can be an acquisition function for BoTorch, which asks for points as (batch, q, d):

        acquisition = lambda X: sample(X).squeeze(-1)  # q = 1

    Parameters
    ----------
    f
        `posterior.mean`, `posterior.samples`, `posterior.sample(i)`, or any function of JAX arrays whose value at a row
        depends on that row only.
    """
    import torch  # pyright: ignore[reportMissingImports]
    from torch.autograd.function import once_differentiable  # pyright: ignore[reportMissingImports]

    precision = {jnp.dtype("float32"): torch.float32, jnp.dtype("float64"): torch.float64}

    def to_jax(tensor: Any) -> Array:
        """Share memory if the dtypes are equal. This is safe because the result is ready before PyTorch continues."""
        return jnp.from_dlpack(tensor.detach().to(precision[jnp.result_type(float)]).contiguous())

    def to_torch(array: Array, like: Any) -> Any:
        return torch.from_dlpack(jax.block_until_ready(array)).to(like).clone()

    class Evaluate(torch.autograd.Function):
        """f with its gradient."""

        @staticmethod
        def forward(ctx: Any, X: Any) -> Any:
            ctx.save_for_backward(X)
            return to_torch(_values(f, to_jax(X)), X)

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, gradient: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            (X,) = ctx.saved_tensors
            return to_torch(_pulled_back(f, to_jax(X), to_jax(gradient)), X)

    def evaluate(X: Any) -> Any:
        values = Evaluate.apply(X.reshape(-1, X.shape[-1]))
        return values.reshape((*X.shape[:-1], *values.shape[1:]))

    return evaluate


def _values(f: Callable[[Array], Array], X: Float[Array, "n d"]) -> Float[Array, "n *s"]:
    points, n = pad_points(X, None)
    return _evaluate(f, points)[:n]


def _pulled_back(
    f: Callable[[Array], Array], X: Float[Array, "n d"], gradient: Float[Array, "n *s"]
) -> Float[Array, "n d"]:
    points, n = pad_points(X, None)
    return _vjp(f, points, pad_rows(gradient, points.shape[0]))[:n]


@eqx.filter_jit
def _evaluate(f: Callable[[Array], Array], X: Float[Array, "n d"]) -> Float[Array, "n *s"]:
    return f(X)


@eqx.filter_jit
def _vjp(f: Callable[[Array], Array], X: Float[Array, "n d"], gradient: Float[Array, "n *s"]) -> Float[Array, "n d"]:
    return jax.vjp(f, X)[1](gradient)[0]
