"""Posteriors at points as an `xarray.Dataset` in the dimensions that ArviZ reads (the extra `xarray`)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Shaped

from pathgp.estimator.regressor import PathGPRegressor
from pathgp.posterior import Posterior, Predictor

if TYPE_CHECKING:
    import xarray  # pyright: ignore[reportMissingImports]

__all__ = ["estimator_dataset", "posterior_dataset"]

OWN = ("chain", "draw", "point", "target", "f", "mean", "std")
"""Names of the dataset that inputs cannot have."""


def posterior_dataset(
    posterior: Posterior | Predictor, X: Shaped[Any, "..."], names: Sequence[str] | None = None
) -> "xarray.Dataset":
    """Return all samples of a posterior at the rows of X, as `f` with dimensions `chain` (one), `draw` and `point`.

    Coordinates of `point` are the inputs, and the `mean` and standard deviation `std` of f, without noise. Both are
    more precise than the mean and standard deviation of the samples.

    Parameters
    ----------
    posterior
        The posterior.
    X
        Query points, one per row.
    names
        Names of the inputs. None is x0, x1, ….

    Raises
    ------
    ValueError
        If the names are not unique, not one per input, or used by the dataset itself.
    """
    points = np.asarray(X, float)
    mean, variance = posterior.predict(points)
    deviations = np.asarray(posterior.deviations(points))
    draws = (np.asarray(mean).reshape(len(points), -1, 1) + deviations[:, None]).reshape(*np.shape(mean), -1)
    std = np.broadcast_to(np.sqrt(variance), np.shape(mean)[::-1]).T
    return _dataset(points, names, np.asarray(mean), std, draws)


def estimator_dataset(model: PathGPRegressor, X: Any) -> "xarray.Dataset":
    """Return the same dataset for a fitted estimator, in the units of y.

    The inputs have the names of the columns that it was fitted to, if any.

    Parameters
    ----------
    model
        Fitted estimator.
    X
        Query points, one per row.
    """
    mean, std = model.predict(X, return_std=True)
    draws = model.sample_y(X, model.posterior_.num_samples)
    # `predict` includes the noise.
    of_function = np.sqrt(np.maximum(std**2 - model.noise_variance_, 0))
    names = [str(name) for name in getattr(model, "feature_names_in_", [])] or None
    return _dataset(np.asarray(X, float), names, mean, of_function, draws)


def _dataset(
    X: Float[np.ndarray, "n d"],
    names: Sequence[str] | None,
    mean: Float[np.ndarray, "n *t"],
    std: Float[np.ndarray, "n *t"],
    draws: Float[np.ndarray, "n *t s"],
) -> "xarray.Dataset":
    import xarray  # pyright: ignore[reportMissingImports]

    names = [f"x{j}" for j in range(X.shape[1])] if names is None else list(names)
    if len(names) != X.shape[1] or len({*names, *OWN}) < len(names) + len(OWN):
        raise ValueError(
            f"names must be one for each of the {X.shape[1]} inputs, all different and none of {', '.join(OWN)}, but "
            f"they are {', '.join(names)}."
        )
    dims = ("point", "target")[: mean.ndim]
    return xarray.Dataset(
        {"f": (("chain", "draw", *dims), np.moveaxis(draws, -1, 0)[None])},
        {
            "chain": [0],
            "draw": np.arange(draws.shape[-1]),
            "point": np.arange(len(X)),
            **{name: ("point", column) for name, column in zip(names, X.T, strict=True)},
            "mean": (dims, mean),
            "std": (dims, std),
        },
    )
