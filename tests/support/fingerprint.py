"""Weights and predictions of every solver, fitting method and estimator setting, to compare two versions of the code.

    PYTHONPATH=OLD/src python tests/support/fingerprint.py save old.npz
    PYTHONPATH=NEW/src python tests/support/fingerprint.py save new.npz
    python tests/support/fingerprint.py compare old.npz new.npz

`compare` prints the cases that differ, by how much relatively, and exits with 1 if one differs by more than 1e-6.
"""

import sys
import warnings

import numpy as np


def data():
    """Return inputs, observations and query points of a smooth function of three inputs."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (600, 3)).astype(np.float32)
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.normal(size=600)
    return X, y.astype(np.float32), rng.uniform(-2, 2, (70, 3)).astype(np.float32)


def cases():
    """Yield the name of each case and its arrays."""
    import jax

    from pathgp import GP, Local, PathGPRegressor, condition, kernels, likelihood, solvers

    X, y, x = data()
    gp, key = GP(kernels.Matern32(1.2, 1.5), 0.02), jax.random.key(0)
    chosen = {
        "Auto": (solvers.Auto(), None),
        "Cholesky": (solvers.Cholesky(), None),
        "CG": (solvers.CG(), None),
        "CG, cut short": (solvers.CG(steps=7), None),
        "SAP": (solvers.SAP(block_size=128), None),
        "SAP with Local": (solvers.SAP(passes=2, block_size=128), Local(64)),
        "SDD": (solvers.SDD(steps=400), None),
        "SGD": (solvers.SGD(steps=400), None),
        "SubsetOfData": (solvers.SubsetOfData(200), None),
        "InducingCholesky": (solvers.InducingCholesky(X[:80]), None),
        "InducingCG": (solvers.InducingCG(X[:80]), None),
        "InducingSGD": (solvers.InducingSGD(X[:80], steps=300), None),
        "SGPR": (solvers.SGPR(X[:80]), None),
        "SVGP": (solvers.SVGP(X[:40], steps=200), None),
    }
    for name, (solver, local) in chosen.items():
        posterior = condition(gp, X, y, solver=solver, local=local, num_samples=8, key=key)
        mean, variance = posterior.predict(x)
        yield name, (posterior.solution.weights, mean, variance, posterior.info.relative_residual)
    posterior = condition(gp, X[:500], y[:500], solver=solvers.SAP(block_size=128), num_samples=8, key=key)
    posterior = posterior.update(X[500:], y[500:], key=key).with_samples(4, key=key)
    yield "update and with_samples", (posterior.solution.weights, posterior.samples(x))
    methods = {
        "Exact": likelihood.Exact(steps=20),
        "NearestNeighbour": likelihood.NearestNeighbour(steps=30, neighbours=16),
        "Neighbourhoods": likelihood.Neighbourhoods(centroids=2, size=200, steps=10),
        "Pathwise": likelihood.Pathwise(steps=4, probes=8),
    }
    for name, method in methods.items():
        found, trace = likelihood.fit_hyperparameters(gp, X, y, key=key, method=method)
        yield name, (*jax.tree.leaves(found), np.array(trace.loss))
    settings = {
        "estimator": {},
        "estimator, RBF and CG": {"kernel": "rbf", "solver": "cg", "hyperparameters": "fixed", "noise": 0.1},
        "estimator, inducing points": {"solver": "inducing", "hyperparameters": "fixed", "noise": 0.1},
    }
    for name, setting in settings.items():
        model = PathGPRegressor(random_state=0, num_samples=8, **setting).fit(X[:300], y[:300])
        yield name, (*model.predict(x, return_std=True), model.sample_y(x, 3))


def main():
    """Run the command line."""
    if sys.argv[1] == "save":
        warnings.simplefilter("ignore")
        arrays = {f"{name} {i}": np.asarray(a) for name, parts in cases() for i, a in enumerate(parts)}
        np.savez(sys.argv[2], **arrays)
        return
    old, new = (np.load(path) for path in sys.argv[2:4])
    worst = 0.0
    for name in sorted({*old.files, *new.files}):
        if name not in old.files or name not in new.files or old[name].shape != new[name].shape:
            print(f"{name}: in one of them only, or of another shape")
            worst = np.inf
        elif not np.array_equal(old[name], new[name], equal_nan=True):
            change = np.max(np.abs(old[name] - new[name])) / np.max(np.abs(old[name]))
            worst = max(worst, change)
            print(f"{name}: differs by {change:.1e}")
    print(f"{len(new.files)} arrays, largest relative difference {worst:.1e}")
    sys.exit(int(worst > 1e-6))


if __name__ == "__main__":
    main()
