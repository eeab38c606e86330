"""From the settings of a cell, which are JSON, to data, process, solver and posterior; and back to JSON."""

import dataclasses
import time
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from pathgp import solvers
from pathgp.kernels import RBF
from pathgp.posterior.condition import condition
from pathgp.posterior.gp import GP
from pathgp.posterior.posterior import Posterior
from pathgp.solvers import ConvergenceWarning, Iterative, Observer, Snapshot, Solver
from pathgp.solvers.inducing.points import k_means
from pathgp_paper.bench import contest
from pathgp_paper.datasets import Dataset, infill, large_domain
from pathgp_paper.experiments.base import Record, Settings

LOW_NOISE = 1e-6
LAYOUTS = {"infill": infill, "large domain": large_domain}
TOY_LENGTHSCALE, TOY_NOISE = 0.5, 0.5


def problem(settings: Settings) -> tuple[Dataset, GP]:
    """The data set `dataset`, its `split`, the first `rows`; the published process, with `noise` if there is one."""
    noise, test_rows = settings.get("noise"), settings.get("test_rows")
    return contest.problem(settings["dataset"], settings.get("rows"), settings.get("split", 0), noise, None, test_rows)


def toy(settings: Settings) -> tuple[Dataset, GP]:
    """One of the two layouts of the paper's figure 1, with `rows` points, and a squared exponential kernel."""
    return LAYOUTS[settings["layout"]](settings["rows"]), GP(RBF(TOY_LENGTHSCALE), noise=TOY_NOISE)


def solver_of(options: dict[str, Any], data: Dataset, gp: GP) -> Solver:
    """The solver `name` with the other options as its fields; a number of `points` becomes centres of clusters."""
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
    """The posterior, without a word about tolerances that are not meant to be reached."""
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
    """The same after a run that does not count, in which an iterative solver is compiled."""
    if isinstance(solver, Iterative):
        conditioned(gp, data, dataclasses.replace(solver, max_seconds=0.0), num_samples, seed=seed)
    return conditioned(gp, data, solver, num_samples, observe, seed)


class Watch:
    """Keeps the weights at steps about 30 % apart, and when they were reached, looking apart."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.seconds: list[float] = []
        self.weights: list[np.ndarray] = []
        self.looking = 0.0

    def __call__(self, snapshot: Snapshot) -> None:
        """Looks, and keeps what is new enough."""
        start = time.perf_counter()
        if not self.steps or snapshot.step >= 1.3 * self.steps[-1]:
            self.steps.append(snapshot.step)
            self.seconds.append(snapshot.seconds - self.looking)
            self.weights.append(np.asarray(snapshot.weights))
        self.looking += time.perf_counter() - start

    def finish(self, posterior: Posterior) -> None:
        """Adds where the solver ended."""
        info = posterior.info
        if not self.steps or info.steps > self.steps[-1]:
            self.steps.append(info.steps)
            self.seconds.append(info.seconds - self.looking)
            self.weights.append(np.asarray(posterior.solution.weights))


def at_weights(posterior: Posterior, weights: np.ndarray) -> Posterior:
    """The posterior as it was when the solver had these weights."""
    solution = dataclasses.replace(posterior.solution, weights=jnp.asarray(weights))
    return dataclasses.replace(posterior, solution=solution)


class Curve(NamedTuple):
    """The marginals of a posterior's samples along one input, and a few of the samples.

    Solvers given one key share their prior draws. Their curves then differ by the error of the solver, not by the
    Monte Carlo error of the samples, which an exact variance would show.
    """

    x: Float[np.ndarray, "n"]
    mean: Float[np.ndarray, "n"]
    sd: Float[np.ndarray, "n"]
    samples: Float[np.ndarray, "n s"]

    @classmethod
    def of(cls, posterior: Posterior, x: Float[np.ndarray, "n 1"]) -> dict[str, Any]:
        """As JSON, rounded to what a picture shows."""
        mean, deviations = np.asarray(posterior.mean(x)), np.asarray(posterior.deviations(x))
        sd, samples = np.sqrt(np.mean(deviations**2, axis=1)), mean[:, None] + deviations[:, :4]
        curve = cls(x[:, 0], mean, sd, samples)
        return {name: np.round(values.astype(float), 5).tolist() for name, values in curve._asdict().items()}

    @classmethod
    def read(cls, record: Record) -> "Curve":
        """From the result of a cell."""
        assert record.result is not None
        return cls(*(np.array(record.result[name]) for name in cls._fields))

    def w2(self, other: "Curve") -> Float[np.ndarray, "n"]:
        """The 2-Wasserstein distance between the marginals, point by point."""
        return np.hypot(self.mean - other.mean, self.sd - other.sd)

    def draw(self, axes: Any, exact: "Curve | None", colour: str) -> None:
        """Mean, two standard deviations and samples, with the exact ones as lines."""
        axes.fill_between(self.x, self.mean - 2 * self.sd, self.mean + 2 * self.sd, color=colour, alpha=0.25, lw=0)
        axes.plot(self.x, self.samples, color=colour, lw=0.5, alpha=0.6)
        axes.plot(self.x, self.mean, color=colour, lw=1.4, label="mean ± 2 sd, samples")
        if exact is not None:
            axes.plot(self.x, exact.mean, "--", color="black", lw=0.9, label="exact mean ± 2 sd")
            for side in (-2, 2):
                axes.plot(self.x, exact.mean + side * exact.sd, ":", color="black", lw=0.9)
        axes.set_xlim(self.x[0], self.x[-1])


def root_mean_square(values: np.ndarray) -> float:
    """√ of the mean of squares."""
    return float(np.sqrt(np.mean(np.square(values))))
