"""Appendix C: samples on inducing points with prior draws f instead of their Nyström approximation f^(z)."""

from typing import TYPE_CHECKING

import jax
import numpy as np

from pathgp.plots import BLUE
from pathgp.solvers import SGPR, Cholesky, InducingCholesky
from pathgp.solvers.inducing.points import k_means
from pathgp_paper.experiments.base import Cell, Experiment, Record, Result, Settings, Table, canvas, find
from pathgp_paper.experiments.problems import LAYOUTS, Curve, conditioned, root_mean_square, toy
from pathgp_paper.experiments.verdicts import Behaviour, Claim, ratio

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {"exact": "exact process", "optimal": "exact f⁽ᶻ⁾ (SGPR)", "approximate": "f instead of f⁽ᶻ⁾"}
SIZES = {"smoke": (300, 8), "machine": (10_000, 512), "paper": (10_000, 2000)}
POINTS = {
    "smoke": {"infill": (6, 20), "large domain": (6, 20)},
    "machine": {"infill": (6, 10, 20), "large domain": (128, 256, 512)},
    "paper": {"infill": (6, 10, 20), "large domain": (128, 256, 512)},
}
CLOSE = 0.1


class Approximation(Experiment):
    """Measure the effect of the approximation where inducing points are accurate, and where they are not."""

    name = "inducing-approximation"
    title = "The approximation of samples on inducing points"
    reproduces = "Appendix C and its figure"
    published = (
        "10k points in both layouts of figure 1: samples with prior draws f at the data, instead of f⁽ᶻ⁾ = K K⁻¹ f(z), "
        "differ from the KL-optimal ones only where these are themselves far from the exact process; the error bars "
        "are then too large. With more points all three become indistinguishable."
    )

    def cells(self, scale: str) -> list[Cell]:
        """Return the exact GP of each layout, and both kinds of samples for each number of points."""
        rows, samples = SIZES[scale]
        found = []
        for layout in LAYOUTS:
            base, name = {"layout": layout, "rows": rows, "samples": samples}, layout.replace(" ", "-")
            found.append(Cell(f"{name}-exact", {**base, "kind": "exact", "points": 0}))
            for points in POINTS[scale][layout]:
                found += [
                    Cell(f"{name}-{kind}-{points}", {**base, "kind": kind, "points": points})
                    for kind in ("optimal", "approximate")
                ]
        return found

    def compute(self, settings: Settings) -> Result:
        """Return the marginals. All kinds share the same prior draws."""
        data, gp = toy(settings)
        solver = Cholesky()
        if settings["kind"] != "exact":
            z = k_means(gp.kernel, data.X, settings["points"], key=jax.random.key(1))
            solver = SGPR(points=z) if settings["kind"] == "optimal" else InducingCholesky(points=z)
        return Curve.of(conditioned(gp, data, solver, settings["samples"], seed=1), data.X_test)

    def figure(self, records: list[Record]) -> "Figure":
        """Draw both kinds for each layout and number of points, with the exact GP as lines."""
        done = [r for r in find(records) if r.settings["kind"] != "exact"]
        rows = [(layout, kind) for layout in LAYOUTS for kind in ("optimal", "approximate")]
        columns = max(len(find(done, layout=layout, kind="optimal")) for layout in LAYOUTS)
        figure, axes = canvas(len(rows), max(columns, 1), 3.4 * max(columns, 1), 8.6)
        for line, (layout, kind) in zip(axes, rows, strict=True):
            exact = next((Curve.read(r) for r in find(records, layout=layout, kind="exact")), None)
            for panel, record in zip(line, find(done, layout=layout, kind=kind), strict=False):
                curve = Curve.read(record)
                curve.draw(panel, exact, BLUE)
                w2 = "" if exact is None else f", W2 {root_mean_square(curve.w2(exact)):.3f}"
                panel.set_title(f"M = {record.settings['points']}{w2}", fontsize=10)
                panel.set_ylim(-4, 4)
            line[0].set_ylabel(f"{layout}\n{KINDS[kind]}")
        for panel in axes[-1]:
            panel.set_xlabel("x")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
        return figure

    def tables(self, records: list[Record]) -> list[Table]:
        """Return the distances of both kinds to the exact GP and to each other."""
        lines = [
            [layout, str(points), f"{optimal:.4f}", f"{approximate:.4f}", f"{between:.4f}", f"{wider:+.4f}"]
            for layout, points, optimal, approximate, between, wider in compared(records)
        ]
        head = [
            "layout",
            "M",
            "optimal to exact",
            "approximate to exact",
            "between the two",
            "sd, approximate less optimal",
        ]
        return [Table("Root mean square W2 over the inputs shown", head, lines)]

    def claims(self, records: list[Record]) -> list[Claim]:
        """Return the claims: a small difference where the optimum is close, and larger error bars where it is not."""
        found = compared(records)
        close = [row for row in found if row[2] <= CLOSE]
        far = [row for row in found if row[2] > CLOSE]
        why = f"no number of points was run with an optimum {'within' if not close else 'beyond'} {CLOSE} of the exact"
        most = max(found, key=lambda row: row[1], default=None)
        return [
            Behaviour(
                "Where the optimum is close to the exact process, the approximation is close to it",
                f"largest W2 between the two where the optimum is within {CLOSE}",
                max((row[4] for row in close), default=None),
                CLOSE,
                why,
            ),
            Behaviour(
                "Where it is not, the approximation's error bars are the larger ones",
                "mean sd, optimal / approximate, the largest ratio",
                _widest(records, far),
                1.0,
                why,
            ),
            Behaviour(
                "With the most points they are indistinguishable",
                "W2 between the two, with the most points",
                None if most is None else most[4],
                0.05,
                why,
            ),
        ]


def compared(records: list[Record]) -> list[tuple[str, int, float, float, float, float]]:
    """Return one row per layout and number of points: W2 of both to the exact GP, W2 between them, mean rise in sd."""
    found = []
    for record in find(records, kind="optimal"):
        layout, points = record.settings["layout"], record.settings["points"]
        exact, other = find(records, layout=layout, kind="exact"), find(records, layout=layout, kind="approximate")
        other = [r for r in other if r.settings["points"] == points]
        if exact and other:
            true, optimal, approximate = map(Curve.read, (exact[0], record, other[0]))
            distances = optimal.w2(true), approximate.w2(true), approximate.w2(optimal)
            wider = float(np.mean(approximate.sd - optimal.sd))
            found.append((layout, points, *map(root_mean_square, distances), wider))
    return found


def _widest(records: list[Record], rows: list[tuple[str, int, float, float, float, float]]) -> float | None:
    """Return the largest ratio of mean standard deviations, optimal to approximate."""
    ratios = []
    for layout, points, *_ in rows:
        pair = [find(records, layout=layout, points=points, kind=kind)[0] for kind in ("optimal", "approximate")]
        ratios.append(ratio(*(float(np.mean(Curve.read(record).sd)) for record in pair)) or 0.0)
    return max(ratios, default=None)


EXPERIMENT = Approximation()
