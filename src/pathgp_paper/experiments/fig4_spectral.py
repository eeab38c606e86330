"""Figure 4: the location of SGD's error and of the spectral basis functions."""

from typing import TYPE_CHECKING

import numpy as np

from pathgp.analysis.spectral import basis_of, regions
from pathgp.plots import BLUE, ORANGE
from pathgp_paper.experiments.base import Cell, Experiment, Record, Result, Settings, Table, canvas, find
from pathgp_paper.experiments.problems import Curve, conditioned, solver_of, toy
from pathgp_paper.experiments.verdicts import Behaviour, Claim, ratio

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INDEX = (0, 1, 2, 4, 9, 14, 19)
SIZES = {"smoke": (300, 8, 50), "machine": (10_000, 64, 3000), "paper": (10_000, 2000, 100_000)}
"""Number of points, samples, and steps of SGD."""


class Spectral(Experiment):
    """Compare the location of SGD's error with that of basis functions with small eigenvalues."""

    name = "spectral"
    title = "SGD's error and spectral basis functions"
    reproduces = "Figure 4"
    published = (
        "10k points in one dimension: SGD and the exact process agree near the data and far away from them; the W2 "
        "distance of their marginals has its peaks at the edges of the data. Spectral basis functions of low index lie "
        "on the data, those of index 10 and more at the edges, where the error is large."
    )

    def cells(self, scale: str) -> list[Cell]:
        """Return one cell for the exact posterior and its basis, and one for SGD."""
        rows, samples, steps = SIZES[scale]
        options = {"exact": {"name": "Cholesky"}, "sgd": {"name": "SGD", "steps": steps, "batch_size": 256}}
        base = {"layout": "infill", "rows": rows, "samples": samples}
        return [Cell(name, {**base, "kind": name, "solver": solver}) for name, solver in options.items()]

    def compute(self, settings: Settings) -> Result:
        """Return the marginals; for the exact posterior also the basis functions and regions."""
        data, gp = toy(settings)
        posterior = conditioned(gp, data, solver_of(settings["solver"], data, gp), settings["samples"], seed=1)
        found = Curve.of(posterior, data.X_test)
        if settings["kind"] == "exact":
            basis = basis_of(posterior, num_points=min(600, settings["rows"]))
            kept = [i for i in INDEX if i < len(basis.eigenvalues)]
            scores = regions(posterior, data.X_test, basis=basis)
            found |= {
                "index": kept,
                "eigenvalues": basis.eigenvalues[kept].tolist(),
                "functions": np.round(basis.values(data.X_test)[:, kept], 5).tolist(),
                "regions": {name: np.round(score, 5).tolist() for name, score in scores._asdict().items()},
                "data": np.round(np.sort(data.X[:: max(1, len(data.X) // 500), 0]).astype(float), 4).tolist(),
            }
        return found

    def figure(self, records: list[Record]) -> "Figure | None":
        """Draw the fit, the W2 distance, and the basis functions."""
        exact, sgd = _both(records)
        if exact is None or sgd is None:
            return None
        assert exact.result is not None
        figure, axes = canvas(3, 1, 7.5, 8.4)
        fit, distance, functions = axes[:, 0]
        curve = Curve.read(sgd)
        curve.draw(fit, Curve.read(exact), BLUE)
        fit.set(ylim=(-4, 4), ylabel="y", title="SGD (blue) and the exact process (black)")
        fit.plot(exact.result["data"], np.full(len(exact.result["data"]), -3.8), "|", color="#777777", alpha=0.3, ms=5)
        distance.fill_between(curve.x, 0, curve.w2(Curve.read(exact)), color=ORANGE, alpha=0.6, lw=0)
        distance.set(xlim=fit.get_xlim(), ylim=(0, None), ylabel="W2 to exact")
        from matplotlib import colormaps

        values = np.array(exact.result["functions"])
        for place, (i, eigenvalue) in enumerate(zip(exact.result["index"], exact.result["eigenvalues"], strict=True)):
            label = f"i = {i + 1}, λ = {eigenvalue:.2g}"
            functions.plot(
                curve.x, values[:, place], color=colormaps["viridis"](place / len(INDEX)), lw=1.2, label=label
            )
        functions.set(xlim=fit.get_xlim(), xlabel="x", ylabel="spectral basis functions")
        functions.legend(fontsize=7, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.22), frameon=False)
        return figure

    def tables(self, records: list[Record]) -> list[Table]:
        """Return the eigenvalue and location of each basis function."""
        exact, _ = _both(records)
        if exact is None:
            return []
        assert exact.result is not None
        places = _places(exact.result)
        lines = [
            [str(i + 1), f"{eigenvalue:.3g}", f"{place:.2f}"]
            for i, eigenvalue, place in zip(exact.result["index"], exact.result["eigenvalues"], places, strict=True)
        ]
        caption = "Spectral basis functions u⁽ⁱ⁾; the data have a root mean square |x| of 1"
        return [Table(caption, ["i", "eigenvalue", "root mean square |x| of u²"], lines)]

    def claims(self, records: list[Record]) -> list[Claim]:
        """Return the claims: small errors near the data and far away; functions of high index at the edges."""
        exact, sgd = _both(records)
        near = far = moved = None
        if exact is not None and sgd is not None:
            assert exact.result is not None
            w2 = Curve.read(sgd).w2(Curve.read(exact))
            weights = {name: np.array(score) for name, score in exact.result["regions"].items()}
            average = {name: float(np.sum(w * w2) / np.sum(w)) for name, w in weights.items()}
            near = ratio(average["interpolation"], average["extrapolation"])
            edge = np.abs(Curve.read(sgd).x) > 5
            far = ratio(float(np.mean(w2[edge])), float(np.max(w2)))
            places = dict(zip(exact.result["index"], _places(exact.result), strict=True))
            late = [place for i, place in places.items() if i >= 9]
            moved = ratio(places[0], float(np.mean(late))) if late else None
        why = "not run here yet"
        return [
            Behaviour("Little error among the data", "mean W2, interpolation / extrapolation region", near, 0.5, why),
            Behaviour("Little error far from the data", "mean W2 for |x| > 5 / largest W2", far, 0.2, why),
            Behaviour("High indices lie at the edges", "|x| of u⁽¹⁾ / |x| of u⁽ⁱ⁾ with i ≥ 10", moved, 0.75, why),
        ]


def _both(records: list[Record]) -> tuple[Record | None, Record | None]:
    exact, sgd = (next(iter(find(records, kind=kind)), None) for kind in ("exact", "sgd"))
    return exact, sgd


def _places(result: Result) -> list[float]:
    """Return the root mean square of x, weighted by u², for each basis function u."""
    x, mass = np.array(result["x"]), np.array(result["functions"]) ** 2
    return np.sqrt((x[:, None] ** 2 * mass).sum(axis=0) / mass.sum(axis=0)).tolist()


EXPERIMENT = Spectral()
