"""Writes the measured tables into README.md and pages of docs/ from docs/results/*.json:

    python -m pathgp_paper.bench.report

Replaces the text between `<!-- NAME -->` and `<!-- end -->` by the table of NAME.json, which the benchmarks store with
their option `--out`.
"""

import json
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[3]
RESULTS = ROOT / "docs" / "results"
NAMES = {
    "auto": "**`condition(gp, X, y)`**",
    "sap": "`SAP()`, no local projection",
    "cg": "`CG()`",
    "sdd": "`SDD()`, stopped by the clock",
    "sgd": "`SGD()`, the paper's, stopped by the clock",
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
    pages = (ROOT / "docs" / f"{name}.md" for name in ("benchmarks", "choosing", "local", "reproduction", "scaling"))
    for page in (ROOT / "README.md", *pages):
        page.write_text(filled(page.read_text()))


def filled(text: str) -> str:
    """Return the page with every named table replaced by the stored results."""
    pattern = re.compile(r"(<!-- (?!end)([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
    return pattern.sub(lambda found: f"{found[1]}{table(found[2])}\n{found[3]}", text)


def table(name: str) -> str:
    stored = json.loads((RESULTS / f"{name}.json").read_text())
    lines = TABLES[stored["benchmark"]](stored)
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


def learning_table(stored: dict) -> list[str]:
    """Return one row per data set: test scores with the published hyperparameters and with those of each method."""
    names = {"nearest": "`NearestNeighbour()`", "pathwise": "and `Pathwise()`", "neighbourhoods": "`Neighbourhoods()`"}
    methods = [name for name in names if any(r["method"] == name for r in stored["results"])]
    heads = [f"{names[name]}: RMSE / NLL | s | GB" for name in methods]
    lines = [f"| | published: RMSE / NLL | {' | '.join(heads)} |", "|---|" + "---:|" * (1 + 3 * len(methods))]
    found = {(r["dataset"], r["method"]): r for r in stored["results"]}
    score = lambda r: f"{r['rmse']:.4f} / {r['nll']:.3f}" if "rmse" in r else r.get("failed", "")
    for dataset in dict.fromkeys(r["dataset"] for r in stored["results"]):
        cells = [score(found.get((dataset, "published"), {"failed": "not run"}))]
        for r in (found.get((dataset, name), {}) for name in methods):
            took = f"{r['learn_seconds']:.0f} | {r['gigabytes']:.1f}" if "learn_seconds" in r else " | "
            cells.append(f"{score(r)} | {took}")
        lines.append(f"| {dataset} | {' | '.join(cells)} |")
    return lines


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


def splits_table(stored: dict) -> list[str]:
    """Return the default solver and the exact one, with one row per data set and split."""
    lines = ["| | split | seconds | RMSE | exact | NLL | exact |", "|---|" + "---:|" * 6]
    exact = {(r["dataset"], r["split"]): r for r in stored["results"] if r["name"] != "auto"}
    for r in stored["results"]:
        if r["name"] == "auto":
            other = exact.get((r["dataset"], r["split"]), {})
            rmse, nll = (f"{other[k]:.{n}f}" if k in other else "" for k, n in (("rmse", 4), ("nll", 3)))
            cells = f"{r['seconds']:.1f} | {r['rmse']:.4f} | {rmse} | {r['nll']:.3f} | {nll} |"
            lines.append(f"| {r['dataset']} | {r['split']} | {cells}")
    return lines


def noise_table(stored: dict) -> list[str]:
    lines = [
        "| | RMSE, published noise | RMSE, noise 1e-6 | exact at 1e-6 | NLL at 1e-6 | exact |",
        "|---|" + "---:|" * 5,
    ]
    results = {(r["dataset"], r["name"], r["noise"] is None): r for r in stored["results"]}
    for dataset in dict.fromkeys(r["dataset"] for r in stored["results"]):
        tuned, low = results[dataset, "auto", True], results[dataset, "auto", False]
        exact = results.get((dataset, "cholesky", False), {})
        rmse, nll = (f"{exact[k]:.{n}f}" if k in exact else "" for k, n in (("rmse", 4), ("nll", 0)))
        lines.append(f"| {dataset} | {tuned['rmse']:.4f} | {low['rmse']:.4f} | {rmse} | {low['nll']:.0f} | {nll} |")
    return lines


def rows_table(stored: dict) -> list[str]:
    lines = ["| synthetic rows | seconds | passes | GB |", "|---:|" + "---:|" * 3]
    for r in stored["results"]:
        lines.append(f"| {r['rows']:,} | {r['seconds']:.1f} | {r['passes']:.1f} | {r['gigabytes']:.2f} |")
    return [*lines, "", f"Log-log slope {stored['slope']:.2f}."]


def rivals_table(stored: dict) -> list[str]:
    """Return the remaining error of each solver after given numbers of passes."""
    passes = ["1", "2", "3", "5", "10", "20", "50"]
    lines = [f"| {stored['dataset']}, {stored['rows']:,} rows | setup, s | {' | '.join(passes)} |"]
    lines.append("|---|" + "---:|" * (1 + len(passes)))
    for name, line in stored["lines"].items():
        found = line.get("passes", {})
        errors = [f"{found[k][1]:.3f}" if k in found else "" for k in passes]
        if "error" in line:
            errors = [
                f"{line['error']:.3f}" if f", {k} pass" in name else cell
                for k, cell in zip(passes, errors, strict=True)
            ]
        setup = f"{line['setup']:.1f}" if "setup" in line else ""
        lines.append(f"| {name} | {setup} | {' | '.join(errors)} |")
    return lines


def local_table(stored: dict) -> list[str]:
    """Return the table of the local projection. With more than one pass, it has only the default setting."""
    sets = list(stored["figures"])
    lines = [f"| RMSE / NLL | {' | '.join(sets)} |", "|---|" + "---:|" * len(sets)]
    for label in stored["figures"][sets[0]]:
        if "passes + local" in label and "128 neighbours, taper 0.25" not in label:
            continue
        cells = (f"{rmse:.4f} / {nll:.3f}" for rmse, nll in (stored["figures"][name][label] for name in sets))
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return lines


def million_table(stored: dict) -> list[str]:
    names = {"exact": "exact, on as many random rows", "cg": "`InducingCG()`", "sgd": "`InducingSGD()`"}
    lines = [
        "| 8 inputs, mean and 16 samples | rows | points | seconds | of processors | GB | test RMSE | above the noise "
        "| error / spread |",
        "|---|" + "---:|" * 8,
    ]
    for r in stored["results"]:
        cells = f"{r['rows']:,} | {r['points']:,} | {r['seconds']:.0f} | {r['processor_seconds']:.0f}"
        quality = f"{r['rmse']:.4f} | {r['excess']:.4f} | {r['error_over_spread']:.2f}"
        lines.append(f"| {names[r['name']]} | {cells} | {r['gigabytes']:.1f} | {quality} |")
    return lines


def choices_table(stored: dict) -> list[str]:
    lines = [f"| points among {stored['rows']:,} rows of 10 inputs | points | seconds | GB |", "|---|---:|---:|---:|"]
    return lines + [
        f"| `{r['name'].split(', ')[0]}`, {r['name'].split(', ', 1)[1]} | {r['points']:,} | {r['seconds']:.0f} | "
        f"{r['gigabytes']:.2f} |"
        for r in stored["results"]
    ]


def steps_table(stored: dict) -> list[str]:
    lines = ["| a step of `InducingSGD` against | | log-log slope |", "|---|---|---:|"]
    fixed = {"rows": "rows, at 4096 points", "points": "points, at 50,000 rows"}
    for label, words in fixed.items():
        found = stored[label]
        times = zip(found["sizes"], found["seconds_a_step"], strict=True)
        cells = ", ".join(f"{size:,}: {1000 * seconds:.1f} ms" for size, seconds in times)
        lines.append(f"| {words} | {cells} | {found['slope']:.2f} |")
    return lines


def maximise_table(stored: dict) -> list[str]:
    f = stored["figures"]
    return [
        "| 1000 samples, 10,000 rows, 8 inputs | seconds | GB | mean of the maxima |",
        "|---|---:|---:|---:|",
        f"| posterior, 1000 samples | {f['condition_seconds']:.0f} | {f['gigabytes_before']:.2f} | |",
        f"| best candidates | {f['candidates_seconds']:.0f} | | {f['mean_best_candidate']:.3f} |",
        f"| `maximise`, with ascents | {f['maximise_seconds']:.0f} | {f['gigabytes']:.2f} | {f['mean_maximum']:.3f} |",
    ]


def optimise_table(stored: dict) -> list[str]:
    """Return the final regret, mean ± standard error over the seeds, and the seconds. The smallest regret is bold."""
    runs = stored["figures"]
    methods = list(dict.fromkeys(r["method"] for r in runs))
    lines = [f"| | {' | '.join(f'{m}: regret | s' for m in methods)} |", "|---|" + "---:|" * (2 * len(methods))]
    for problem in dict.fromkeys(r["problem"] for r in runs):
        ends = {m: [r for r in runs if (r["problem"], r["method"]) == (problem, m)] for m in methods}
        means = {m: sum(r["regret"][-1] for r in rs) / len(rs) for m, rs in ends.items() if rs}
        cells = []
        for m in methods:
            values = [r["regret"][-1] for r in ends[m]]
            error = (sum((v - means[m]) ** 2 for v in values) / max(len(values) - 1, 1) / len(values)) ** 0.5
            mark = "**" if means[m] == min(means.values()) else ""
            seconds = sum(r["seconds"] for r in ends[m]) / len(values)
            cells.append(f"{mark}{means[m]:.3g} ± {error:.2g}{mark} | {seconds:.0f}")
        lines.append(f"| {problem} | {' | '.join(cells)} |")
    return lines


def neighbours_table(stored: dict) -> list[str]:
    """Return one row per search and one column per set of points: queries per second, and recall if it is not 1."""
    sets = list(dict.fromkeys(r["points"] for r in stored["results"]))
    found = {(r["points"], r["search"]): r for r in stored["results"]}
    heads = (name.split(" x ")[1].replace(" ", " inputs, ") for name in sets)
    lines = [f"| {stored['rows']:,} points, queries a second | {' | '.join(heads)} |", "|---|" + "---:|" * len(sets)]
    for search in dict.fromkeys(r["search"] for r in stored["results"]):
        cells = []
        for r in (found[name, search] for name in sets):
            recall = "" if r["recall"] > 0.99995 else f", recall {r['recall']:.3f}"
            cells.append(f"{r['queries_per_second']:,.0f}{recall}")
        lines.append(f"| {search} | {' | '.join(cells)} |")
    return lines


def paper_table(stored: dict) -> list[str]:
    """Return the tables of an experiment, one below the other."""
    lines = []
    for found in stored["tables"]:
        head = [cell or " " for cell in found["head"]]
        lines += ["", f"*{found['caption']}*", "", f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
        lines += [f"| {' | '.join(line)} |" for line in found["lines"]]
    return lines[1:]


def verdicts_table(stored: dict) -> list[str]:
    lines = ["| experiment | of the paper | cells | minutes | verdicts |", "|---|---|---:|---:|---|"]
    for line in stored["lines"]:
        done, cells = line["cells"]
        run = f"{done} of {cells} | {line['minutes']:.1f} | {line['verdicts']}" if done else "not run | | "
        lines.append(f"| `{line['name']}` | {line['reproduces']} | {run} |")
    return lines


def mutations_table(stored: dict) -> list[str]:
    lines = ["| what was broken | in | the first test that failed |", "|---|---|---|"]
    return lines + [
        f"| {r['what']} | `{r['file']}` | {'**none**' if r['noticed'] is None else _test(r['noticed'])} |"
        for r in stored["results"]
    ]


def _test(name: str) -> str:
    file, *test = name.split("::", 1)
    return f"`{pathlib.Path(file).name}`: {test[0].removeprefix('test_').replace('_', ' ') if test else ''}"


def fits_table(stored: dict) -> list[str]:
    lines = [
        "| `pathgp fit --solver` | rows | samples | seconds | peak GB | estimate | ratio |",
        "|---|" + "---:|" * 6,
    ]
    for r in stored["results"]:
        solver = r["solver"] + ("" if r["points"] is None else f" --points {r['points']}")
        memory, told = r["gigabytes"], r["expected_gigabytes"]
        cells = f"{r['rows']:,} | {r['samples']} | {r['seconds']:.0f} | {memory:.2f} | {told:.2f} | {memory / told:.2f}"
        lines.append(f"| `{solver}` | {cells} |")
    return lines


def model_table(stored: dict) -> list[str]:
    lines = ["| 10 inputs | rows | samples | points | measured, s | model, s | ratio |", "|---|" + "---:|" * 6]
    for r in stored["results"]:
        seconds, expected = r["seconds"], r["expected_seconds"]
        points = f"{r['M']:,}" if "Inducing" in r["step"] else ""
        cells = f"{r['N']:,} | {r['c'] - 1} | {points} | {seconds:.3g} | {expected:.3g} | {seconds / expected:.2f}"
        lines.append(f"| {r['step']} | {cells} |")
    return lines


TABLES = {
    "solve": solve_table,
    "predict": predict_table,
    "kernel": kernel_table,
    "learning": learning_table,
    "neighbours": neighbours_table,
    "mutations": mutations_table,
    "paper": paper_table,
    "paper-verdicts": verdicts_table,
    "maximise": maximise_table,
    "optimise": optimise_table,
    "splits": splits_table,
    "noise": noise_table,
    "rows": rows_table,
    "rivals": rivals_table,
    "local": local_table,
    "inducing-million": million_table,
    "inducing-steps": steps_table,
    "inducing-choices": choices_table,
    "scaling-fits": fits_table,
    "scaling-steps": model_table,
}

if __name__ == "__main__":
    main()
