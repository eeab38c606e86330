"""Errors of variances from samples only, with the local projection, and with pooled ratios, against exact ones:

    PATHGP_DATA=... python -m pathgp_paper.bench.variances elevators pol bike

Prints the RMS of log((variance + noise) / (exact variance + noise)) at the test rows, and the test NLL of each. Uses
the published hyperparameters, split 0 and 64 samples.
"""

import argparse
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pathgp import condition
from pathgp.analysis import metrics
from pathgp.linalg.factor import factorise, substitute
from pathgp.system.dense import kernel_float64
from pathgp_paper import datasets


def main() -> None:
    parser = argparse.ArgumentParser(description="variances")
    parser.add_argument("datasets", nargs="+")
    print(f"{'data set':<12} {'variance':<20} {'RMS log error':>13} {'NLL':>8}")
    for name in parser.parse_args().datasets:
        data, gp = datasets.load(name), datasets.published_gp(name)
        posterior = condition(gp, data.X, data.y, key=jax.random.key(0))
        mean, pooled = posterior.predict(data.X_test)
        variance = dataclasses.replace(posterior.predictor, ratio=None).variance(data.X_test)
        sampled = jnp.mean(posterior.deviations(data.X_test) ** 2, axis=1)
        exact = exact_variance(gp, data.X, data.X_test)
        labels = {"samples alone": sampled, "with projection": variance, "and pooled ratios": pooled, "exact": exact}
        for label, v in labels.items():
            noisy = np.asarray(v) + float(gp.noise)
            error = np.sqrt(np.mean(np.log(noisy / (exact + float(gp.noise))) ** 2))
            nll = float(metrics.nll(jnp.asarray(data.y_test), mean, jnp.asarray(noisy, dtype=mean.dtype)))
            print(f"{name:<12} {label:<20} {error:13.3f} {nll:8.4f}", flush=True)


def exact_variance(gp, X, x):
    """Return k(x, x) − k(x, X)(K + σ²I)⁻¹k(X, x)."""
    H = kernel_float64(gp.kernel, jnp.asarray(X), jnp.asarray(X))
    H[np.diag_indices(len(H))] += float(gp.noise)
    factorise(H)
    k = kernel_float64(gp.kernel, jnp.asarray(X), jnp.asarray(x))
    return np.asarray(gp.kernel.diag(jnp.asarray(x))) - np.sum(k * substitute(H, k), axis=0)


if __name__ == "__main__":
    main()
