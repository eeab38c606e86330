"""Conversion of the JSON settings of a cell to data, GP, solver and posterior, and of results to JSON."""

import dataclasses
import time
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from pathgp import solvers
from pathgp.functions import Function
from pathgp.kernels import RBF
from pathgp.posterior.condition import condition
from pathgp.posterior.gp import GP
from pathgp.posterior.posterior import Posterior
from pathgp.posterior.predict import Predictor
from pathgp.solvers import ConvergenceWarning, Iterative, Observer, Snapshot, Solver
from pathgp.solvers.inducing.points import k_means
from pathgp_paper.bench import contest
from pathgp_paper.datasets import Dataset, infill, large_domain
from pathgp_paper.experiments.base import Record, Settings

LOW_NOISE = 1e-6
LAYOUTS = {"infill": infill, "large domain": large_domain}
TOY_LENGTHSCALE, TOY_NOISE = 0.5, 0.5


def problem(settings: Settings) -> tuple[Dataset, GP]:
    """Return the first `rows` of a `split` of `dataset`, and the published GP, with noise variance `noise` if given."""
    noise, test_rows = settings.get("noise"), settings.get("test_rows")
    return contest.problem(settings["dataset"], settings.get("rows"), settings.get("split", 0), noise, None, test_rows)


def toy(settings: Settings) -> tuple[Dataset, GP]:
    """Return a layout of the paper's figure 1 with `rows` points, and a GP with a squared exponential kernel."""
    return LAYOUTS[settings["layout"]](settings["rows"]), GP(RBF(TOY_LENGTHSCALE), noise=TOY_NOISE)


def solver_of(options: dict[str, Any], data: Dataset, gp: GP) -> Solver:
    """Return the solver `name` with the other options as its fields. `points` is a number of k-means centres."""
    fields = {name: value for name, value in options.items() if name != "name"}
    if "points" in fields:
        fields["points"] = k_means(gp.kernel, data.X, min(fields["points"], len(data.X)), key=jax.random.key(1))
    return getattr(solvers, options["name"])(**fields)


def conditioned(
    gp: GP,
    data: Dataset,
    solver: Solver,
    num_samples: int,
    observe: Observer | None = None,
    seed: int = 0,
    keep_bytes: int = 0,
) -> Posterior:
    """Return the posterior. `ConvergenceWarning` is ignored, because the budgets may be too small for the tolerance."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return condition(
            gp,
            data.X,
            data.y,
            solver=solver,
            num_samples=num_samples,
            key=jax.random.key(seed),
            observe=observe,
            keep_bytes=keep_bytes,
        )


def rehearsed(
    gp: GP, data: Dataset, solver: Solver, num_samples: int, observe: Observer | None = None, seed: int = 0
) -> Posterior:
    """Return the posterior after an untimed run that compiles an iterative solver."""
    if isinstance(solver, Iterative):
        conditioned(gp, data, dataclasses.replace(solver, max_seconds=0.0), num_samples, seed=seed)
    return conditioned(gp, data, solver, num_samples, observe, seed)


class Watch:
    """Records weights at steps about 30 % apart, and their times without the time of recording."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.seconds: list[float] = []
        self.weights: list[np.ndarray] = []
        self.looking = 0.0

    def __call__(self, snapshot: Snapshot) -> None:
        """Record the snapshot if its step is at least 1.3 times the last recorded one."""
        start = time.perf_counter()
        if not self.steps or snapshot.step >= 1.3 * self.steps[-1]:
            self.steps.append(snapshot.step)
            self.seconds.append(snapshot.seconds - self.looking)
            self.weights.append(np.asarray(snapshot.weights))
        self.looking += time.perf_counter() - start

    def finish(self, posterior: Posterior) -> None:
        """Record the final weights of the solver."""
        info = posterior.info
        if not self.steps or info.steps > self.steps[-1]:
            self.steps.append(info.steps)
            self.seconds.append(info.seconds - self.looking)
            self.weights.append(np.asarray(posterior.solution.weights))


def at_weights(posterior: Posterior, weights: np.ndarray) -> Predictor:
    """Return predictions with these weights of the solver."""
    p = posterior.predictor
    update = Function(p.update.features, jnp.asarray(weights))
    return Predictor.of(p.prior, update, p.constant, p.correction, p.ratio, p.exact)


class Curve(NamedTuple):
    """Marginals of the posterior samples along one input, and a few of the samples.

    Solvers that are given the same key share their prior draws. Their curves differ by the error of the solver only.
    With an exact variance, the Monte Carlo error of the samples would show as well.
    """

    x: Float[np.ndarray, "n"]
    mean: Float[np.ndarray, "n"]
    sd: Float[np.ndarray, "n"]
    samples: Float[np.ndarray, "n s"]

    @classmethod
    def of(cls, posterior: Posterior, x: Float[np.ndarray, "n 1"]) -> dict[str, Any]:
        """Return the curve as JSON, rounded to the precision that a figure needs."""
        mean, deviations = np.asarray(posterior.mean(x)), np.asarray(posterior.deviations(x))
        sd, samples = np.sqrt(np.mean(deviations**2, axis=1)), mean[:, None] + deviations[:, :4]
        curve = cls(x[:, 0], mean, sd, samples)
        return {name: np.round(values.astype(float), 5).tolist() for name, values in curve._asdict().items()}

    @classmethod
    def read(cls, record: Record) -> "Curve":
        """Return the curve in the result of a cell."""
        assert record.result is not None
        return cls(*(np.array(record.result[name]) for name in cls._fields))

    def w2(self, other: "Curve") -> Float[np.ndarray, "n"]:
        """Return the 2-Wasserstein distance between the marginals, per point."""
        return np.hypot(self.mean - other.mean, self.sd - other.sd)

    def draw(self, axes: Any, exact: "Curve | None", colour: str) -> None:
        """Draw mean, two standard deviations and samples, with the exact ones as lines."""
        axes.fill_between(self.x, self.mean - 2 * self.sd, self.mean + 2 * self.sd, color=colour, alpha=0.25, lw=0)
        axes.plot(self.x, self.samples, color=colour, lw=0.5, alpha=0.6)
        axes.plot(self.x, self.mean, color=colour, lw=1.4, label="mean ± 2 sd, samples")
        if exact is not None:
            axes.plot(self.x, exact.mean, "--", color="black", lw=0.9, label="exact mean ± 2 sd")
            for side in (-2, 2):
                axes.plot(self.x, exact.mean + side * exact.sd, ":", color="black", lw=0.9)
        axes.set_xlim(self.x[0], self.x[-1])


def root_mean_square(values: np.ndarray) -> float:
    """Return the root mean square."""
    return float(np.sqrt(np.mean(np.square(values))))
