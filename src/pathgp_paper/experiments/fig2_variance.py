"""Figure 2 (left): the gradient variance of the two sampling objectives, along the descent."""

from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pathgp.plots import BLUE, ORANGE
from pathgp.solvers import SGD, Observer
from pathgp.system.system import System
from pathgp_paper.experiments.base import (
    Cell,
    Experiment,
    Record,
    Result,
    Settings,
    Table,
    canvas,
    find,
    plain_log_ticks,
)
from pathgp_paper.experiments.problems import Watch, conditioned, problem
from pathgp_paper.experiments.verdicts import Behaviour, Claim

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOSSES = {1: "loss 1, noise in the targets", 2: "loss 2, noise in the regulariser"}
BASE = {
    "smoke": {"dataset": "synthetic", "rows": 300, "steps": 40, "samples": 4, "max_seconds": 60.0},
    "machine": {"dataset": "elevators", "rows": None, "steps": 5000, "samples": 8, "max_seconds": 240.0},
    "paper": {"dataset": "elevators", "rows": None, "steps": 100_000, "samples": 64, "max_seconds": float(10**9)},
}


class Variance(Experiment):
    """Measure the reduction of the gradient variance by moving the noise into the regulariser."""

    name = "gradient-variance"
    title = "Gradient variance of the two sampling objectives"
    reproduces = "Figure 2 (left) and appendix D"
    published = (
        "On elevators, the variance of the gradient of a batch of one row, throughout optimisation: that of loss 2, "
        "the proposed objective with the noise in the regulariser, stays below that of loss 1."
    )

    def cells(self, scale: str) -> list[Cell]:
        """Return one cell per loss, each along its own descent."""
        return [Cell(f"{BASE[scale]['dataset']}-loss-{loss}", {**BASE[scale], "loss": loss}) for loss in LOSSES]

    def compute(self, settings: Settings) -> Result:
        """Return the exact variance, over all rows, at steps about 30 % apart."""
        data, gp = problem(settings)
        steps, low_variance = settings["steps"], settings["loss"] == 2
        # averaging = steps makes the averaging rate 1, so the observed weights are the iterates themselves
        solver = SGD(
            steps=steps, averaging=float(steps), low_variance=low_variance, max_seconds=settings["max_seconds"]
        )
        watch = Watch()
        posterior = conditioned(gp, data, solver, settings["samples"], Observer(max(1, steps // 500), watch))
        system, targets = posterior.system, posterior.targets
        t = (targets.signal if low_variance else targets.total)[:, 1:]
        norms = squared_norms(system)
        zero = np.zeros_like(watch.weights[0])
        variances = [row_variance(system, norms, jnp.asarray(w)[:, 1:], t) for w in (zero, *watch.weights)]
        mean = [float(np.mean(values)) for values in variances]
        return {"steps": [0, *watch.steps], "variance": mean, "seconds": posterior.info.seconds}

    def figure(self, records: list[Record]) -> "Figure":
        """Draw both curves."""
        figure, axes = canvas(1, 1, 6.4, 4.0)
        panel = axes[0, 0]
        for (loss, label), colour in zip(LOSSES.items(), (ORANGE, BLUE), strict=True):
            for record in find(records, loss=loss):
                assert record.result is not None
                panel.plot(record.result["steps"], record.result["variance"], "o-", ms=3, color=colour, label=label)
        panel.set_xscale("symlog", linthresh=max(1, records[0].settings["steps"] // 500))
        panel.set_xlim(left=0)
        panel.set(yscale="log", xlabel="step of SGD", ylabel="variance of the gradient, one row")
        plain_log_ticks(panel.yaxis)
        panel.set_title(records[0].settings["dataset"])
        panel.legend()
        return figure

    def tables(self, records: list[Record]) -> list[Table]:
        """Return the variance at the start and at the end."""
        lines = [
            [LOSSES[r.settings["loss"]], *_ends(r.result["variance"]), str(r.result["steps"][-1])]
            for r in find(records)
            if r.result is not None
        ]
        caption = "Trace of the covariance of K_{X,i}(K_{i,X} α − t_i) over the rows i, mean over the samples"
        return [Table(caption, ["objective", "at the start", "at the end", "steps"], lines)]

    def claims(self, records: list[Record]) -> list[Claim]:
        """Return the claims: a smaller variance at the start, as appendix D proves, and along the descent."""
        one, two = ({k: v for r in find(records, loss=i) for k, v in _points(r)} for i in LOSSES)
        both = sorted(set(one) & set(two))
        ratios = [two[step] / one[step] for step in both]
        late = ratios[len(ratios) // 2 :]
        why = "one of the two was not run"
        return [
            Behaviour("Less variance at the start", "loss 2 / loss 1", ratios[0] if ratios else None, 1.0, why),
            Behaviour("Less variance throughout", "largest loss 2 / loss 1", max(ratios) if ratios else None, 1.0, why),
            Behaviour(
                "Far less once the fit is close",
                "median of loss 2 / loss 1 in the later half",
                float(np.median(late)) if late else None,
                0.5,
                why,
            ),
        ]


def _ends(values: list[float]) -> list[str]:
    return [f"{values[0]:.3g}", f"{values[-1]:.3g}"]


def _points(record: Record) -> list[tuple[int, float]]:
    assert record.result is not None
    return list(zip(record.result["steps"], record.result["variance"], strict=True))


@partial(jax.jit, static_argnames="rows")
def _norms(system: System, index: Array, rows: int) -> Float[Array, "n"]:
    block = system.kernel(jax.lax.dynamic_slice_in_dim(system.X, index, rows), system.X)
    return jnp.sum(block**2, axis=1)


def squared_norms(system: System, tile: int = 500) -> Float[Array, "N"]:
    """Return ‖K_{X,i}‖² for each row i, computed in tiles."""
    N, tile = system.size, min(tile, system.size)
    found = np.zeros(N)
    for start in range(0, N, tile):
        start = min(start, N - tile)
        found[start : start + tile] = _norms(system, jnp.asarray(start), tile)
    return jnp.asarray(found, system.X.dtype)


def row_variance(
    system: System, norms: Float[Array, "N"], alpha: Float[Array, "N s"], t: Float[Array, "N s"]
) -> Float[np.ndarray, "s"]:
    """Return E_i ‖g_i‖² − ‖E_i g_i‖² in closed form, where g_i = K_{X,i} (K_{i,X} α − t_i) and i is a random row."""
    K = lambda V: system @ V - system.noise_diagonal[:, None] * V
    misfit = K(alpha) - t
    second = np.mean(np.asarray(norms[:, None] * misfit**2, dtype=np.float64), axis=0)
    first = np.asarray(K(misfit), dtype=np.float64) / system.size
    return second - np.sum(first**2, axis=0)


EXPERIMENT = Variance()
