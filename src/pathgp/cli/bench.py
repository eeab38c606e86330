"""`pathgp bench`: reproducible measurements, each compared with peers in one run."""

import argparse
import json
import pathlib
import re
import subprocess
import sys
from datetime import date
from typing import Any

from pathgp._checks import require_at_least
from pathgp.cli.common import add_data_dir, check_out, check_picture
from pathgp.runs.atomic import write_atomically
from pathgp_paper import datasets
from pathgp_paper.bench import cold, contest, learning, product, throughput
from pathgp_paper.bench.machine import machine
from pathgp_paper.bench.peers import PEERS


def add_to(commands: Any) -> None:
    """Add `bench` and its benchmarks to the command line."""
    benchmarks = commands.add_parser(
        "bench", help="measure speed, memory and accuracy, compared with other libraries"
    ).add_subparsers(required=True, metavar="BENCHMARK")
    kernel = benchmarks.add_parser("kernel", help="time the tiled kernel product, compared with a naive expression")
    kernel.add_argument("--inputs", type=int, default=product.INPUTS, help="number of inputs (default: %(default)s)")
    kernel.add_argument("--out", type=pathlib.Path, help="also write the results to this JSON file")
    kernel.set_defaults(run=bench_kernel)
    solve = benchmarks.add_parser("solve", help="compute the mean and 64 samples with each solver and library")
    solve.add_argument("--dataset", default="synthetic", help="a data set in PATHGP_DATA, or synthetic (the default)")
    add_data_dir(solve)
    solve.add_argument("--n", type=int, help="use only the first N training rows (default: all; synthetic: 10000)")
    solve.add_argument("--split", type=int, default=0, help="index of the test split (default: %(default)s)")
    solve.add_argument("--noise", type=float, help="noise variance (default: the published one)")
    solve.add_argument("--hyperparameters", type=pathlib.Path, help="JSON file written by `pathgp bench learn`")
    solve.add_argument("--test-rows", type=int, metavar="N", help="use only the first N test rows")
    solve.add_argument("--only", nargs="+", choices=sorted(contest.CONTESTANTS), help="run only these")
    solve.add_argument(
        "--timeout", type=float, default=900.0, metavar="S", help="stop each after S seconds (default: %(default)s)"
    )
    solve.add_argument("--out", type=pathlib.Path, help="also write the results to this JSON file")
    solve.add_argument(
        "--plot", type=pathlib.Path, help="also plot error against time to this file (.png, .pdf or .svg)"
    )
    solve.set_defaults(run=bench_solve)
    learn = benchmarks.add_parser("learn", help="fit hyperparameters from default starting values")
    learn.add_argument("--dataset", default="synthetic", help="a data set in PATHGP_DATA, or synthetic (the default)")
    add_data_dir(learn)
    learn.add_argument("--n", type=int, help="use only the first N training rows (default: all; synthetic: 10000)")
    learn.add_argument(
        "--method",
        choices=sorted(learning.METHODS),
        default="nearest",
        help="marginal likelihood (default: %(default)s)",
    )
    learn.add_argument("--no-test", action="store_true", help="do not score them on the test rows")
    learn.add_argument("--test-rows", type=int, metavar="N", help="score them only on the first N test rows")
    learn.add_argument("--out", type=pathlib.Path, help="also write them and the scores to this JSON file")
    learn.set_defaults(run=bench_learn)
    predict = benchmarks.add_parser("predict", help="measure predictions per second: mean, variance and 64 samples")
    predict.add_argument("--dataset", default="synthetic", help="a data set in PATHGP_DATA, or synthetic (the default)")
    add_data_dir(predict)
    predict.add_argument("--n", type=int, help="use only the first N training rows (default: all; synthetic: 10000)")
    predict.add_argument(
        "--points", type=int, default=100_000, metavar="N", help="number of points to predict (default: %(default)s)"
    )
    predict.add_argument("--out", type=pathlib.Path, help="also write the results to this JSON file")
    predict.set_defaults(run=bench_predict)
    first = benchmarks.add_parser("cold", help="time a first fit and prediction in new processes, imports included")
    first.add_argument(
        "--rows", type=int, nargs="+", default=cold.ROWS, metavar="N", help="numbers of rows (default: 200 600 2000)"
    )
    first.add_argument("--out", type=pathlib.Path, help="also write the results to this JSON file")
    first.set_defaults(run=bench_cold)


def bench_cold(arguments: argparse.Namespace) -> None:
    """Time first fits next to scikit-learn's, and print and store the table."""
    _check_outs(arguments)
    for rows in arguments.rows:
        require_at_least(rows, 20, "--rows")
    cells = cold.run(arguments.rows)
    print(cold.table(cells))
    store(arguments.out, {"benchmark": "cold", "rows": [cell._asdict() for cell in cells]})


def bench_kernel(arguments: argparse.Namespace) -> None:
    """Time the kernel product, and print and store the table."""
    _check_outs(arguments)
    require_at_least(arguments.inputs, 1, "--inputs")
    rows = product.run(inputs=arguments.inputs)
    print(product.table(rows))
    store(arguments.out, {"benchmark": "kernel", "inputs": arguments.inputs, "rows": [row._asdict() for row in rows]})


def bench_solve(arguments: argparse.Namespace) -> None:
    """Run each contestant in its own process, one after the other, and print and store the table."""
    # Errors in the input are raised before any work.
    a = arguments
    _check_outs(a)
    require_at_least(a.timeout, 0, "--timeout")
    data, _ = contest.problem(a.dataset, a.n, a.split, a.noise, a.hyperparameters, a.test_rows)
    names = arguments.only or list(contest.CONTESTANTS)
    results = []
    print(f"{arguments.dataset}, {len(data.X)} training rows, {data.X.shape[1]} inputs, {len(data.X_test)} test rows")
    for name in names:
        results.append(contested(name, arguments))
        print(_line(results[-1]), file=sys.stderr, flush=True)
    print(table(results))
    best = min((r["seconds"] for r in results if r["name"] in PEERS and "failed" not in r), default=None)
    for result in results:
        if best is not None and "failed" not in result:
            result["ratio_to_best_peer"] = result["seconds"] / best
    description = {"dataset": arguments.dataset, "split": arguments.split, "noise": arguments.noise}
    store(arguments.out, {"benchmark": "solve", **description, "results": results})
    if arguments.plot is not None:
        from pathgp.plots import error_against_time

        error_against_time(results, arguments.dataset, arguments.plot)


def bench_predict(arguments: argparse.Namespace) -> None:
    """Time the predictions of a posterior, and print and store the table."""
    _check_outs(arguments)
    require_at_least(arguments.points, 1, "--points")
    data, gp = contest.problem(arguments.dataset, arguments.n, 0)
    posterior, rows = throughput.run(data, gp, arguments.points)
    memory = contest.peak_gigabytes()
    print(
        f"{arguments.dataset}, {len(data.X)} training rows, solver {posterior.info.solver}, peak memory {memory:.2f} GB"
    )
    print(throughput.table(rows))
    figures = {"dataset": arguments.dataset, "gigabytes": memory, "rows": [row._asdict() for row in rows]}
    store(arguments.out, {"benchmark": "predict", **figures})


def bench_learn(arguments: argparse.Namespace) -> None:
    """Fit hyperparameters, evaluate them on the test rows, and store them for `bench solve`."""
    a = arguments
    _check_outs(a)
    for option, number in (("--n", a.n), ("--test-rows", a.test_rows)):
        require_at_least(1 if number is None else number, 1, option)
    data = datasets.synthetic(a.n or 10_000) if a.dataset == "synthetic" else datasets.load(a.dataset)
    data = data._replace(X=data.X[: a.n], y=data.y[: a.n])
    data = data._replace(X_test=data.X_test[: a.test_rows], y_test=data.y_test[: a.test_rows])
    gp, figures = learning.learn(data, a.method)
    figures |= {"dataset": a.dataset, "rows": len(data.X), "gigabytes": contest.peak_gigabytes()}
    found = {"benchmark": "learn", **figures, **learning.as_published(gp)}
    store(a.out, found)  # before the evaluation, which can take long
    if not a.no_test:
        figures |= learning.judge(data, gp)
        store(a.out, found | figures)
    print(json.dumps(figures))


def contested(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the result of one contestant, or the reason why it failed."""
    command = [sys.executable, "-m", "pathgp_paper.bench.contest", name, "--dataset", arguments.dataset]
    command += ["--split", str(arguments.split)] + ([] if arguments.n is None else ["--n", str(arguments.n)])
    for option in ("noise", "hyperparameters", "test_rows"):
        value = getattr(arguments, option)
        command += [] if value is None else [f"--{option.replace('_', '-')}", str(value)]
    # A process of its own measures the memory of one contestant, and its crash does not end the others.
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=arguments.timeout)
    except subprocess.TimeoutExpired:
        return {"name": name, "failed": f"stopped after {arguments.timeout:.0f} s"}
    if run.returncode < 0:
        return {"name": name, "failed": f"crashed with signal {-run.returncode}"}
    if run.returncode > 0:
        reason = run.stderr.strip().splitlines()[-1] if run.stderr.strip() else f"exit code {run.returncode}"
        return {"name": name, "failed": _in_short(reason)}
    return json.loads(run.stdout.splitlines()[-1])


def _in_short(reason: str) -> str:
    """Return the last line of a traceback, shortened for a missing package or a failed allocation."""
    if "ModuleNotFoundError" in reason:
        return f"not installed ({reason.split(': ')[-1]})"
    asked = re.search(r"tried to allocate (\d+) bytes", reason)
    return f"out of memory (asked for {int(asked[1]) / 1e9:.0f} GB)" if asked else reason


def table(results: list[dict[str, Any]]) -> str:
    """Return one line per contestant, with the ratio of its time to that of the fastest peer that finished."""
    peers = [r["seconds"] for r in results if r["name"] in PEERS and "failed" not in r]
    head = f"{'name':<14} {'seconds':>8} {'to peer':>8} {'compile':>8} {'passes':>7} {'GB':>6} {'RMSE':>7} {'NLL':>8}"
    return "\n".join([head, *(_line(r, min(peers, default=None)) for r in results)])


def _line(result: dict[str, Any], best: float | None = None) -> str:
    if "failed" in result:
        return f"{result['name']:<14} {result['failed']}"
    ratio = f"{result['seconds'] / best:8.2f}" if best else " " * 8
    compiling = f"{result['compile_seconds']:8.1f}" if "compile_seconds" in result else " " * 8
    passes = f"{result['passes']:7.1f}" if "passes" in result else " " * 7
    return (
        f"{result['name']:<14} {result['seconds']:8.2f} {ratio} {compiling} {passes} {result['gigabytes']:6.2f} "
        f"{result['rmse']:7.4f} {result['nll']:8.4f}"
    )


def _check_outs(arguments: argparse.Namespace) -> None:
    """Raise an error before any work if an output cannot be written; earlier results are replaced."""
    if arguments.out is not None:
        check_out(arguments.out, force=True)
    if getattr(arguments, "plot", None) is not None:
        check_picture(arguments.plot, force=True)


def store(path: pathlib.Path | None, figures: dict[str, Any]) -> None:
    """Write the results atomically, with the machine and the date."""
    if path is None:
        return
    stored = {"date": date.today().isoformat(), "machine": machine(), **figures}
    write_atomically(path, json.dumps(stored, indent=2).encode())
