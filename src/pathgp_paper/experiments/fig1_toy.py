"""Figure 1: several solvers with the same time budget, on two layouts of points in one dimension."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pathgp.plots import BLUE, GREY
from pathgp_paper.experiments.base import Cell, Experiment, Record, Result, Settings, Table, canvas, find
from pathgp_paper.experiments.problems import LAYOUTS, Curve, rehearsed, root_mean_square, solver_of, toy
from pathgp_paper.experiments.verdicts import Behaviour, Claim, ratio

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXACT = "Cholesky"
SIZES = {"smoke": (300, 0.1, 8), "machine": (10_000, 10.0, 64), "paper": (10_000, 600.0, 2000)}
"""Number of points, seconds per solver, and number of samples."""

SOLVERS = (EXACT, "SGD", "CG", "SVGP", "SDD", "SAP")
POINTS = {"infill": 20, "large domain": 1024}
CLOSE = 0.1


class Toy(Experiment):
    """Compare solvers with the exact posterior, on dense points and on points that are spread out."""

    name = "toy"
    title = "Solvers on two layouts of points"
    reproduces = "Figure 1"
    published = (
        "10k points of sin(2x) + cos(5x) with noise of variance 0.5 and a squared exponential kernel, 10 minutes for "
        "each method on an RTX 2070. Where points crowd (infill), CG stays far from the exact posterior, SGD departs "
        "from it only at the edges of the data, and SVGP with 20 points follows it. On a regular grid (large domain) "
        "SGD and CG recover it, and 1024 points are not enough for SVGP."
    )

    def cells(self, scale: str) -> list[Cell]:
        """Return one cell per layout and solver."""
        small = scale == "smoke"
        return cells(*SIZES[scale], steps=100 if small else 20_000, solvers=SOLVERS[: 3 if small else None])

    def compute(self, settings: Settings) -> Result:
        """Return the marginals along the input, and the cost of the solve."""
        data, gp = toy(settings)
        posterior = rehearsed(gp, data, solver_of(settings["solver"], data, gp), settings["samples"], seed=1)
        info = posterior.info
        told = {
            "seconds": info.seconds,
            "passes": info.passes,
            "relative_residual": float(info.relative_residual.max()),
        }
        return {**told, **Curve.of(posterior, data.X_test)}

    def figure(self, records: list[Record]) -> "Figure":
        """Draw one row per layout and one column per solver."""
        columns = len(records) // len(LAYOUTS)
        figure, axes = canvas(len(LAYOUTS), columns, 2.9 * columns, 5.4)
        for record, panel in zip(records, axes.flat, strict=True):
            layout, solver = record.settings["layout"], record.settings["solver"]["name"]
            panel.set(ylim=(-4, 4), xlabel="x", title=f"{solver}, {layout}")
            distance = distances(records).get((layout, solver))
            if record.result is not None:
                exact = next(iter(_of(records, layout, EXACT)), None)
                data, _ = toy(record.settings)  # generated, so it need not be stored
                panel.plot(data.X[::5, 0], data.y[::5], ".", color=GREY, ms=1, alpha=0.3, rasterized=True)
                Curve.read(record).draw(panel, None if exact is None else Curve.read(exact), BLUE)
                end = "" if distance is None else f", W2 {distance:.3f}"
                panel.set_title(f"{solver}: {record.result['seconds']:.1f} s{end}", fontsize=10)
        for line, layout in zip(axes, LAYOUTS, strict=True):
            line[0].set_ylabel(f"{layout}\ny")
            for panel in line[1:]:
                panel.tick_params(labelleft=False)
        handles, labels = axes[0, min(1, columns - 1)].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
        return figure

    def tables(self, records: list[Record]) -> list[Table]:
        """Return the distance to the exact marginals, and the seconds and passes of each solve."""
        found = distances(records)
        lines = [
            [*key, *(f"{r.result[name]:.1f}" for name in ("seconds", "passes")), f"{found[key]:.4f}"]
            for r in records
            for key in [(r.settings["layout"], r.settings["solver"]["name"])]
            if r.result is not None and key in found
        ]
        caption = "Root mean square over the inputs shown of the W2 distance to the exact marginals"
        return [Table(caption, ["layout", "solver", "seconds", "passes", "W2"], lines)]

    def claims(self, records: list[Record]) -> list[Claim]:
        """Return the claims in the caption of the figure."""
        w2 = distances(records)
        get = lambda layout, solver: w2.get((layout, solver))
        why = "not run here yet"
        return [
            Behaviour(
                "Infill: within the budget CG is further from the exact posterior than SGD",
                "W2 of SGD / W2 of CG",
                ratio(get("infill", "SGD"), get("infill", "CG")),
                1.0,
                why,
            ),
            Behaviour(
                "Infill: SGD errs at the edges of the data, not among them",
                "W2 of SGD for |x| < 1.5 / its largest W2",
                _inside(records),
                0.2,
                why,
            ),
            Behaviour("Infill: SVGP follows with 20 points", "W2 of SVGP", get("infill", "SVGP"), CLOSE, why),
            Behaviour("Large domain: SGD recovers it", "W2 of SGD", get("large domain", "SGD"), CLOSE, why),
            Behaviour("Large domain: CG recovers it", "W2 of CG", get("large domain", "CG"), CLOSE, why),
            Behaviour(
                "Large domain: SVGP's points are not enough",
                "W2 of CG / W2 of SVGP",
                ratio(get("large domain", "CG"), get("large domain", "SVGP")),
                0.5,
                why,
            ),
        ]


def cells(
    rows: int, seconds: float, samples: int, *, steps: int = 20_000, solvers: Sequence[str] = SOLVERS
) -> list[Cell]:
    """Return the cells of both layouts, for this number of points, seconds per solver, and number of samples."""
    limited, found = {"max_seconds": seconds}, []
    for layout in LAYOUTS:
        options = {
            EXACT: {},
            "SGD": {"steps": steps, "batch_size": 256, **limited},
            "CG": {"steps": 1000, **limited},
            "SVGP": {"points": min(POINTS[layout], rows // 4), "steps": min(steps, 2000), "batch_size": 512},
            "SDD": {"steps": steps, "batch_size": 256, **limited},
            "SAP": {"passes": 1000, **limited},
        }
        for name in solvers:
            settings = {"layout": layout, "rows": rows, "samples": samples, "solver": {"name": name, **options[name]}}
            found.append(Cell(f"{layout.replace(' ', '-')}-{name.lower()}", settings))
    return found


def _of(records: list[Record], layout: str, solver: str) -> list[Record]:
    return [r for r in find(records, layout=layout) if r.settings["solver"]["name"] == solver]


def distances(records: list[Record]) -> dict[tuple[str, str], float]:
    """Return the root mean square of W2 to the exact marginals, by layout and solver."""
    found = {}
    for record in find(records):
        layout, solver = record.settings["layout"], record.settings["solver"]["name"]
        for exact in _of(records, layout, EXACT):
            found[layout, solver] = root_mean_square(Curve.read(record).w2(Curve.read(exact)))
    return found


def _inside(records: list[Record]) -> float | None:
    """Return the mean W2 of SGD for |x| < 1.5, as a share of its largest W2."""
    sgd, exact = _of(records, "infill", "SGD"), _of(records, "infill", EXACT)
    if not sgd or not exact:
        return None
    curve = Curve.read(sgd[0])
    w2 = curve.w2(Curve.read(exact[0]))
    return float(w2[abs(curve.x) < 1.5].mean() / w2.max())


EXPERIMENT = Toy()
