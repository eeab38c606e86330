"""Writes the measured tables into README.md and docs/benchmarks.md from benchmarks/results/*.json:

    python benchmarks/report.py

A table stands between `<!-- NAME -->` and `<!-- end -->`; the figures were stored by `pathgp bench ... --out`.
"""

import json
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
NAMES = {
    "auto": "**`condition(gp, X, y)`**",
    "sap": "`SAP()`, no local projection",
    "cg": "`CG()`",
    "sdd": "`SDD()`, at most 150 s",
    "sgd": "`SGD()`, the paper's, at most 150 s",
    "cholesky": "`Cholesky()`, float64",
    "svgp": "`SVGP()`, 1024 points",
    "inducing": "`InducingCG()`, random rows",
    "subset": "`SubsetOfData(25_000)`",
    "scipy-float64": "SciPy Cholesky, float64 ¹",
    "scipy-float32": "SciPy Cholesky, float32 in place ¹",
    "sklearn": "scikit-learn ¹",
    "gpytorch": "GPyTorch, CG to 0.01, LOVE ¹",
    "botorch": "BoTorch, 64 Matheron paths",
    "gpytorch-svgp": "GPyTorch, SVGP, 1024 points ¹",
    "gpboost-100": "GPBoost, Vecchia 100 ¹",
    "gpboost-200": "GPBoost, Vecchia 200 ¹",
}


def main() -> None:
    for page in (ROOT / "README.md", ROOT / "docs" / "benchmarks.md"):
        page.write_text(filled(page.read_text()))


def filled(text: str) -> str:
    """The page with every table that it names made anew."""
    pattern = re.compile(r"(<!-- (?!end)([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
    return pattern.sub(lambda found: f"{found[1]}{table(found[2])}\n{found[3]}", text)


def table(name: str) -> str:
    stored = json.loads((RESULTS / f"{name}.json").read_text())
    lines = {"solve": solve_table, "predict": predict_table, "kernel": kernel_table, "learn": learn_table}[
        stored["benchmark"]
    ](stored)
    machine = stored["machine"]
    return "\n".join([*lines, "", f"{stored['date']}, {machine['cores']} cores, {machine['processor']}."])


def solve_table(stored: dict) -> list[str]:
    rows = next(r["rows"] for r in stored["results"] if "rows" in r)
    lines = [
        f"| {stored['dataset']}, {rows:,} rows | seconds | passes | GB | test RMSE | test NLL |",
        "|---|" + "---:|" * 5,
    ]
    for r in stored["results"]:
        if "failed" in r:
            lines.append(f"| {NAMES[r['name']]} | {r['failed']} | | | | |")
            continue
        passes = f"{r['passes']:.1f}" if "passes" in r else ""
        lines.append(
            f"| {NAMES[r['name']]} | {r['seconds']:.1f} | {passes} | {r['gigabytes']:.2f} | {r['rmse']:.4f} | "
            f"{r['nll']:.3f} |"
        )
    return lines


def learn_table(stored: dict) -> list[str]:
    lengths = ", ".join(f"{length:.3g}" for length in stored["length_scale"])
    return [
        f"| {stored['dataset']}, {stored['rows']:,} rows | seconds | GB | noise sd | signal sd | length scales |",
        "|---|" + "---:|" * 4 + "---|",
        f"| `NearestNeighbour()` | {stored['learn_seconds']:.0f} | {stored['gigabytes']:.2f} | "
        f"{stored['noise_scale']:.3g} | {stored['signal_scale']:.3g} | {lengths} |",
    ]


def predict_table(stored: dict) -> list[str]:
    lines = [f"| {stored['dataset']}, asked for | points | points a second |", "|---|---:|---:|"]
    return lines + [f"| {r['asked']} | {r['points']:,} | {r['points_per_second']:,.0f} |" for r in stored["rows"]]


def kernel_table(stored: dict) -> list[str]:
    lines = [
        "| columns | naive, ms | naive, wide vectors | tiled, ms | ratio | to wide | G entries/s |",
        "|---:|" + "---:|" * 6,
    ]
    return lines + [
        f"| {r['columns']} | {r['naive_ms']:.1f} | {r['naive_wide_ms']:.1f} | {r['tiled_ms']:.1f} | {r['ratio']:.1f} | "
        f"{r['ratio_wide']:.1f} | {r['giga_entries_per_second']:.2f} |"
        for r in stored["rows"]
    ]


if __name__ == "__main__":
    main()
