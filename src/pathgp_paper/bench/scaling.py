# pyright: reportCallIssue=false
"""The cost model of docs/scaling.md compared with measurements, and its computed tables:

    python -m pathgp_paper.bench.scaling fits [--out FILE]      whole fits: seconds, peak memory, and its estimate
    python -m pathgp_paper.bench.scaling steps [--out FILE]     a pass or a step of each solver, with the cost model
    python -m pathgp_paper.bench.scaling memmap [--rows 2000000] [--out FILE]
    python -m pathgp_paper.bench.scaling paper                  tables for many accelerators, computed, not measured

`fits` and `memmap` write a synthetic .npy file in chunks, and run `pathgp fit` on it in a separate process.
"""

import argparse
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from threadpoolctl import threadpool_limits

from pathgp import GP, condition
from pathgp.cli.bench import store
from pathgp.kernels import Matern32
from pathgp.linalg.tiles import tiled_product
from pathgp.solvers import CG, SAP, SDD, SGD, InducingCG, InducingSGD, Observer

INPUTS = 10
BATCH, FEATURES, BLOCK, FACTOR_BYTES, RANK = 512, 100, 1024, 512 * 2**20, 100
FLOAT = 4


class Sizes(NamedTuple):
    """Numbers of rows N, inputs d, columns c (the mean and the samples), inducing points M, and devices P."""

    N: int
    d: int
    c: int
    M: int
    P: int


class Step(NamedTuple):
    """Total work of a pass or a step, and the memory and communication of each device."""

    entries: float
    """Kernel entries computed, each used in a product with all columns."""
    again: float
    """Entries used in a second product."""
    alike: float
    """Operations replicated on every device."""
    moved: float
    """Bytes of columns and inputs read and written, without the tiles."""
    held: float
    """Bytes on each device."""
    sent: float
    """Bytes that each device sends."""
    reductions: float
    """Number of synchronisations between devices."""


def sap_pass(z: Sizes) -> Step:
    """N/b projections. Every device recomputes the factors that are not kept, with (4/3) b³ operations each."""
    steps, b = z.N / BLOCK, BLOCK
    kept = FLOAT * z.N * b <= FACTOR_BYTES
    alike = steps * (4 * b**2 * z.c + (0 if kept else 4 / 3 * b**3))
    moved = steps * FLOAT * z.N * (z.d + 14 * z.c)
    held = FLOAT * z.N / z.P * (18 * z.c + 4 * z.d) + min(FLOAT * z.N * b, FACTOR_BYTES)
    sent = 0 if z.P == 1 else steps * 2 * FLOAT * b * (z.d + z.c + 1) + FLOAT * z.N * z.c
    return Step(z.N**2, 0, alike, moved, held, sent, 0 if z.P == 1 else steps)


def cg_step(z: Sizes) -> Step:
    """One product with K, and the preconditioner of rank 100. Rows are passed between devices in a ring."""
    held = FLOAT * z.N / z.P * (11 * z.c + 4 * z.d + 4 * RANK)
    moved = FLOAT * z.N * (12 * z.c + 2 * RANK)
    return Step(z.N**2, 0, 0, moved, held, FLOAT * (z.P - 1) * z.N / z.P * (z.d + z.c), z.P - 1)


def sdd_step(z: Sizes) -> Step:
    """A batch times all rows; momentum and average of all coordinates."""
    held = FLOAT * z.N / z.P * (11 * z.c + 4 * z.d)
    sent = 0 if z.P == 1 else 2 * FLOAT * BATCH * (z.d + z.c)
    return Step(BATCH * z.N, 0, 0, FLOAT * z.N * 9 * z.c, held, sent, 0 if z.P == 1 else 2)


def sgd_step(z: Sizes) -> Step:
    """A batch times all rows and its transpose, and features at all rows, used twice."""
    held = FLOAT * z.N / z.P * (12 * z.c + 4 * z.d + 1.5 * FEATURES)
    sent = 0 if z.P == 1 else 2 * FLOAT * (BATCH * (z.d + z.c) + FEATURES * z.c)
    entries, moved = (2 * BATCH + FEATURES) * z.N, FLOAT * z.N * (14 * z.c + 3 * FEATURES)
    return Step(entries, FEATURES * z.N, 0, moved, held, sent, 0 if z.P == 1 else 3)


def inducing_cg_step(z: Sizes) -> Step:
    """All rows times all points, each tile used twice and recomputed every tenth step; four triangular solves."""
    held = FLOAT * (z.N / z.P * (3.5 * z.c + 3 * z.d) + z.M**2 + 8 * z.M * z.c)
    entries, sent = 1.1 * z.N * z.M + z.M**2, 0 if z.P == 1 else 1.1 * 2 * 2 * FLOAT * z.M * z.c
    moved = FLOAT * 1.1 * z.N * z.d
    return Step(entries, 1.1 * z.N * z.M, 4 * z.M**2 * z.c, moved, held, sent, 0 if z.P == 1 else 2.2)


def inducing_sgd_step(z: Sizes) -> Step:
    """A batch times all points and its transpose, and features at the points, used twice."""
    held = FLOAT * (z.N / z.P * (3.5 * z.c + 3 * z.d) + z.M * (6 * z.c + 2 * FEATURES))
    sent = 0 if z.P == 1 else 2 * FLOAT * (BATCH * (z.d + z.c) + z.M * z.c)
    entries, moved = (2 * BATCH + FEATURES) * z.M, FLOAT * z.M * (14 * z.c + 3 * FEATURES)
    return Step(entries, FEATURES * z.M, 0, moved, held, sent, 0 if z.P == 1 else 3)


STEPS = {
    "SAP, a pass": sap_pass,
    "CG, a step": cg_step,
    "SDD, a step": sdd_step,
    "SGD, a step": sgd_step,
    "InducingCG, a step": inducing_cg_step,
    "InducingSGD, a step": inducing_sgd_step,
}


class Accelerator(NamedTuple):
    """Assumed accelerator: achieved operations and bytes per second, memory, link bandwidth, and latency."""

    flops: float = 1e13
    bandwidth: float = 1.5e12
    memory: float = 80e9
    link: float = 5e10
    latency: float = 3e-5
    evaluation: float = 20
    """Operations per entry for the square root, the exponential and the rest of the kernel."""
    tile_bytes: float = 8
    """Bytes moved per entry, which is written to memory and read again."""


def seconds_on(z: Sizes, step: Step, of: Accelerator) -> float:
    """Return the larger of compute and memory time, divided by P, plus replicated work and communication."""
    computing = step.entries * (2 * z.d + of.evaluation + 2 * z.c) + step.again * 2 * z.c
    moving = step.entries * of.tile_bytes + step.moved
    shared = max(computing / of.flops, moving / of.bandwidth) / z.P
    return shared + step.alike / of.flops + step.sent / of.link + step.reductions * of.latency


def at_the_start(z: Sizes) -> float:
    """Return the bytes on the first device of each process before sharding: X, and the right-hand sides."""
    return FLOAT * z.N * (z.d + 4 * z.c)


ROWS = {10**7: "10 million rows", 10**8: "100 million", 10**9: "1 billion"}


def paper(name: str, points: int = 20_000) -> str:
    """Return the table of a solver for 10 inputs and 16 samples, on 8 to 1024 accelerators."""
    of = Accelerator()
    lines = [f"| {name} | accelerators | seconds | GB on each | GB at the start | GB sent |", "|---:|" + "---:|" * 5]
    for N in ROWS:
        for P in (8, 64, 256, 1024):
            z = Sizes(N, INPUTS, 17, points, P)
            step = STEPS[name](z)
            start = at_the_start(z)
            mark = " ¹" if max(start, step.held) > of.memory else ""
            cells = [ROWS[N], f"{P}", _digits(seconds_on(z, step, of)), f"{_digits(step.held / 1e9)}"]
            lines.append("| " + " | ".join([*cells, f"{_digits(start / 1e9)}{mark}", _digits(step.sent / 1e9)]) + " |")
    return "\n".join(lines)


PAPER = ("SAP, a pass", "SDD, a step", "InducingCG, a step")


def _digits(x: float) -> str:
    """Format with two significant digits (at most five decimals) and no exponent."""
    if x == 0:
        return "0"
    places = max(0, 1 - math.floor(math.log10(abs(x))))
    return f"{x:,.{min(places, 5)}f}"


def write_rows(path: pathlib.Path, rows: int, at_once: int = 65_536) -> None:
    """Write a known function of ten inputs with noise as a .npy file, with the target in the last column."""
    table = np.lib.format.open_memmap(path, "w+", np.float64, (rows, INPUTS + 1))
    rng = np.random.default_rng(0)
    for start in range(0, rows, at_once):
        X = rng.normal(size=(min(at_once, rows - start), INPUTS))
        f = np.sin(2 * X[:, 0]) + X[:, 1] * np.cos(X[:, 2]) + 0.5 * np.sin(X[:, 3] + X[:, 4])
        table[start : start + len(X)] = np.column_stack([X, f + 0.3 * rng.normal(size=len(X))])
    table.flush()


MEASURED = """
import pathlib, re, sys
from pathgp.cli import main
code = main(sys.argv[1:])
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1]) * 1024)
sys.exit(code)
"""


def fit(rows: int, samples: int, solver: str, points: int | None = None) -> dict:
    """Run `pathgp fit` on a .npy file of `rows` rows, and return its measured and estimated cost."""
    with tempfile.TemporaryDirectory() as folder:
        data, model = pathlib.Path(folder, "rows.npy"), pathlib.Path(folder, "model.safetensors")
        write_rows(data, rows)
        words = [
            "fit",
            data,
            "--target",
            INPUTS,
            "--num-samples",
            samples,
            "--solver",
            solver,
            "--out",
            model,
            "--json",
        ]
        words += [] if points is None else ["--points", points]
        clock = time.perf_counter()
        command = [sys.executable, "-c", MEASURED, *map(str, words)]
        run = subprocess.run(command, capture_output=True, text=True)
        seconds = time.perf_counter() - clock
        if run.returncode:
            raise SystemExit(run.stderr)
        told, peak = run.stdout.splitlines()
        result, said = json.loads(told), re.search(r"this will take (.*)\.\n", run.stderr)
        found = {
            "rows": rows,
            "samples": samples,
            "solver": solver,
            "points": points,
            "said": said[1] if said else "",
            "seconds": seconds,
            "gigabytes": int(peak) / 1e9,
            "expected_gigabytes": result["expected"]["gigabytes"],
            "file_gigabytes": data.stat().st_size / 1e9,
            "solve_seconds": result["solve_seconds"],
            "passes": result["passes"],
            "noise_variance": result["noise_variance"],
            "relative_residual": result["relative_residual"],
        }
    memory = found["gigabytes"] / found["expected_gigabytes"]
    print(
        f"{rows:>9,} rows {samples:>3} samples  {found['said']}: took {seconds:.0f} s and {found['gigabytes']:.2f} GB "
        f"({memory:.2f} of it)",
        flush=True,
    )
    return found


FITS = [
    (20_000, 16, "inducing", 2000),
    (100_000, 16, "inducing", 2000),
    (500_000, 16, "inducing", 2000),
    (10_000, 16, "auto", None),
    (20_000, 64, "auto", None),
    (60_000, 16, "auto", None),
    (300_000, 16, "auto", None),
]


def fits(a: argparse.Namespace) -> dict:
    return {"benchmark": "scaling-fits", "results": [fit(*case) for case in FITS if case[0] <= a.rows]}


def memmap(a: argparse.Namespace) -> dict:
    return {"benchmark": "scaling-fits", "results": [fit(a.rows, 16, "inducing", a.points)]}


class Rates(NamedTuple):
    """Seconds per operation on this machine."""

    entry: float
    """Seconds per kernel entry, computed and used in a product with all columns of the solve."""
    flop: float
    """Seconds per operation of a float64 matrix product."""


def measured_rates(inputs: int, columns: int) -> Rates:
    """Return the rates of this machine, from the fastest of a few runs of small parts of the work."""
    rng = np.random.default_rng(0)
    numbers = lambda *shape: jnp.asarray(rng.normal(size=shape), dtype=float)
    A, Z, V = numbers(2048, inputs), numbers(8192, inputs), numbers(8192, columns)
    square = rng.normal(size=(512, 512))
    by_all = _best(lambda: square @ square)
    with threadpool_limits(1, user_api="blas"):  # other work on one core would delay all threads
        by_one = _best(lambda: square @ square)
    flop = min(by_all, by_one / min(2, os.cpu_count() or 1)) / (2 * 512**3)
    return Rates(_best(lambda: _product(A, Z, V)) / (2048 * 8192), flop)


@jax.jit
def _product(A: Float[Array, "n d"], Z: Float[Array, "m d"], V: Float[Array, "m s"]) -> Float[Array, "n s"]:
    return tiled_product(Matern32(1.0), A, Z, V)


def _best(f: Callable[[], Any], least: float = 0.3) -> float:
    """Return the shortest of many run times, compilation excluded: other work on the machine only adds time."""
    jax.block_until_ready(f())
    seconds = []
    while len(seconds) < 3 or (sum(seconds) < least and len(seconds) < 50):
        start = time.perf_counter()
        jax.block_until_ready(f())
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def bandwidth(size: int = 2**25) -> float:
    """Return the memory bandwidth, in bytes per second, of a sum of two arrays."""
    add = jax.jit(lambda x, y: x + 0.5 * y)
    x = jax.numpy.ones(size)
    add(x, x).block_until_ready()
    clock = time.perf_counter()
    add(x, x).block_until_ready()
    return 3 * FLOAT * size / (time.perf_counter() - clock)


def seconds_here(z: Sizes, step: Step, rates: Rates, speed: float) -> float:
    """Return the time of the step at this machine's rates. Products in float32 are twice as fast as in float64."""
    return rates.entry * step.entries + rates.flop * (step.again * z.c + step.alike / 2) + step.moved / speed


def seconds_a_step(solver, X: np.ndarray, samples: int, every: int) -> float:
    """Return the minimum time per step between snapshots. Other load on the machine can only increase it."""
    marks, gp = [], GP(Matern32(3.0, 2.0), noise=0.1)
    watch = Observer(every, lambda s: marks.append(s.seconds))
    condition(gp, X, np.sin(X[:, 0]), solver=solver, num_samples=samples, observe=watch, key=jax.random.key(0))
    return float(np.min(np.diff(marks))) / every


def steps(a: argparse.Namespace) -> dict:
    results, rates = [], {}
    speed = bandwidth()
    for N, samples, M in ((10_000, 16, 1000), (40_000, 16, 1000), (40_000, 64, 4000)):
        X = np.random.default_rng(0).normal(size=(N, INPUTS)).astype(np.float32)
        z = Sizes(N, INPUTS, samples + 1, M, 1)
        rates[samples] = rates.get(samples) or measured_rates(INPUTS, samples + 1)
        number = -(-N // BLOCK)
        solvers = {
            "SAP, a pass": (SAP(passes=3, block_size=BLOCK, tolerance=0.0), number),
            "CG, a step": (CG(steps=3, tolerance=0.0), 1),
            "SDD, a step": (SDD(steps=60, tolerance=0.0), 20),
            "SGD, a step": (SGD(steps=60, tolerance=0.0), 20),
            "InducingCG, a step": (InducingCG(X[:M], steps=4, tolerance=0.0), 1),
            "InducingSGD, a step": (InducingSGD(X[:M], 60, tolerance=0.0), 20),
        }
        for name, (solver, every) in solvers.items():
            found = seconds_a_step(solver, X, samples, every) * (1 if name != "SAP, a pass" else every)
            expected = seconds_here(z, STEPS[name](z), rates[samples], speed)
            results.append({"step": name, **z._asdict(), "seconds": found, "expected_seconds": expected})
            print(
                f"{name:<20} {N:>7,} rows {samples:>3} samples {M:>5} points  {found:9.4f} s, expected {expected:9.4f}"
            )
    kept = {str(s): r._asdict() for s, r in rates.items()}
    return {"benchmark": "scaling-steps", "results": results, "rates": kept, "bytes_a_second": speed}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("benchmark", choices=["fits", "steps", "memmap", "paper"])
    parser.add_argument("--rows", type=int, default=2_000_000, help="of memmap, and the most of fits")
    parser.add_argument("--points", type=int, default=2000, help="inducing points of memmap")
    parser.add_argument("--out", type=pathlib.Path)
    a = parser.parse_args()
    warnings.simplefilter("ignore")
    if a.benchmark == "paper":
        print("\n\n".join(map(paper, PAPER)))
        return
    store(a.out, {"fits": fits, "steps": steps, "memmap": memmap}[a.benchmark](a))


if __name__ == "__main__":
    main()
