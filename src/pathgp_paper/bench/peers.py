# pyright: reportMissingImports=false
"""Other libraries on the same task, each used as its documentation recommends. The extra `peers` installs them."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from pathgp.kernels import Matern32
from pathgp.posterior.gp import GP
from pathgp.solvers.inducing.points import k_means
from pathgp_paper.bench.scores import Result, scores
from pathgp_paper.datasets import Dataset

NUM_SAMPLES = 64
SVGP_POINTS, SVGP_BATCH, SVGP_RATE = 1024, 1024, 0.03


def svgp_points(data: Dataset, gp: GP) -> np.ndarray:
    """Return the inducing points of every SVGP: at most `SVGP_POINTS` k-means centres."""
    return np.asarray(k_means(gp.kernel, data.X, min(SVGP_POINTS, len(data.X)), key=jax.random.key(1)))


def svgp_steps(rows: int) -> int:
    """Return the number of steps of every SVGP: 100 epochs, clipped to between 1000 and 3000 steps."""
    return int(np.clip(100 * -(-rows // SVGP_BATCH), 1000, 3000))


def scipy_cholesky(dtype: type) -> Callable[[Dataset, GP], Result]:
    """Exact mean and variance with NumPy and SciPy: kernel matrix, in-place Cholesky factor, and solves."""

    def run(data: Dataset, gp: GP) -> Result:
        from scipy import linalg

        start = time.perf_counter()
        X, X_test = (_scaled(x, gp).astype(dtype) for x in (data.X, data.X_test))
        H = _matern32(X, X, gp)
        H[np.diag_indices(len(X))] += dtype(gp.noise)
        right = np.vstack([_matern32(X_test, X, gp), data.y.astype(dtype)])
        # The transposes are in column-major order, which LAPACK needs to overwrite them in place.
        L = linalg.cholesky(H.T, lower=True, overwrite_a=True, check_finite=False)
        U = linalg.solve_triangular(L, right.T, lower=True, overwrite_b=True, check_finite=False)
        mean = U[:, :-1].T @ U[:, -1]
        variance = _variance(gp) - np.sum(U[:, :-1] ** 2, axis=0)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, **scores(data, mean, variance + float(gp.noise))}

    return run


def sklearn_gpr(data: Dataset, gp: GP) -> Result:
    """scikit-learn's GaussianProcessRegressor with the same kernel, held fixed."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern

    assert isinstance(gp.kernel, Matern32)
    lengthscale: Any = np.asarray(gp.kernel.lengthscale, dtype=float)
    kernel = ConstantKernel(float(gp.kernel.variance)) * Matern(lengthscale, nu=1.5)
    fixed: Any = None
    start = time.perf_counter()
    model = GaussianProcessRegressor(kernel, alpha=float(gp.noise), optimizer=fixed).fit(data.X, data.y)
    mean, deviation = map(np.asarray, model.predict(data.X_test, return_std=True))
    return {"seconds": time.perf_counter() - start, **scores(data, mean, deviation**2 + float(gp.noise))}


def gpytorch_cg(data: Dataset, gp: GP) -> Result:
    """GPyTorch's exact GP: mean by CG to 0.01 with a preconditioner of rank 100, variance by LOVE."""
    import gpytorch
    import torch

    model = _gpytorch_model(data, gp, torch.float32)
    start = time.perf_counter()
    settings = gpytorch.settings
    with (
        torch.no_grad(),
        settings.eval_cg_tolerance(0.01),
        settings.max_preconditioner_size(100),
        settings.max_cg_iterations(1000),
        settings.fast_pred_var(),
    ):
        prediction = model(torch.tensor(data.X_test))
        mean, variance = prediction.mean.numpy(), prediction.variance.numpy()
    seconds = time.perf_counter() - start
    return {"seconds": seconds, **scores(data, mean, variance + float(gp.noise))}


def gpytorch_svgp(data: Dataset, gp: GP) -> Result:
    """GPyTorch's whitened SVGP with a full covariance. Points, steps, batch size and learning rate equal ours."""
    import gpytorch
    import torch

    class Sparse(gpytorch.models.ApproximateGP):
        def __init__(self, points: Any) -> None:
            q = gpytorch.variational.CholeskyVariationalDistribution(points.shape[0])
            strategy = gpytorch.variational.VariationalStrategy(self, points, q, learn_inducing_locations=False)
            super().__init__(strategy)
            self.mean, self.kernel = gpytorch.means.ZeroMean(), _torch_kernel(gp)

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    torch.manual_seed(0)
    X, y, X_test = (torch.tensor(x, dtype=torch.float32) for x in (data.X, data.y, data.X_test))
    steps, start = svgp_steps(len(X)), time.perf_counter()
    model = Sparse(torch.tensor(svgp_points(data, gp), dtype=torch.float32)).float()
    smallest = gpytorch.constraints.GreaterThan(1e-8)
    likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=smallest)
    likelihood.noise = float(gp.noise)
    for fixed in (*model.kernel.parameters(), *likelihood.parameters()):
        fixed.requires_grad_(False)
    objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(X))
    optimizer = torch.optim.Adam(model.variational_parameters(), lr=SVGP_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    rows = torch.utils.data.TensorDataset(X, y)
    batches = torch.utils.data.DataLoader(rows, batch_size=min(SVGP_BATCH, len(X)), shuffle=True)
    model.train()
    done = 0
    while done < steps:
        for X_batch, y_batch in batches:
            optimizer.zero_grad()
            loss: Any = -objective(model(X_batch), y_batch)
            loss.backward()
            optimizer.step()
            schedule.step()
            done += 1
            if done == steps:
                break
    model.eval()
    with torch.no_grad():
        predictions = [model(part) for part in X_test.split(1024)]
        mean = np.concatenate([p.mean.numpy() for p in predictions])
        variance = np.concatenate([p.variance.numpy() for p in predictions])
    seconds = time.perf_counter() - start
    return {"seconds": seconds, **scores(data, mean, variance + float(gp.noise))}


def botorch_paths(data: Dataset, gp: GP) -> Result:
    """BoTorch's pathwise conditioning: mean and variance of 64 posterior function samples at the test rows."""
    import torch
    from botorch.models import SingleTaskGP
    from botorch.sampling.pathwise import draw_matheron_paths

    X, y = torch.tensor(data.X, dtype=torch.float64), torch.tensor(data.y, dtype=torch.float64)[:, None]
    noise = torch.full_like(y, float(gp.noise))
    model = SingleTaskGP(X, y, noise, covar_module=_torch_kernel(gp), outcome_transform=None).double()
    assert model.mean_module is not None
    model.mean_module.initialize(constant=0.0)
    torch.manual_seed(0)
    start = time.perf_counter()
    with torch.no_grad():
        paths = draw_matheron_paths(model.eval(), sample_shape=torch.Size([NUM_SAMPLES]))
        values = paths(torch.tensor(data.X_test, dtype=torch.float64)).reshape(NUM_SAMPLES, -1).numpy()
    seconds = time.perf_counter() - start
    return {"seconds": seconds, **scores(data, values.mean(axis=0), values.var(axis=0) + float(gp.noise))}


def gpboost_vecchia(neighbours: int) -> Callable[[Dataset, GP], Result]:
    """GPBoost's Vecchia approximation: mean and variance, without function samples."""

    def run(data: Dataset, gp: GP) -> Result:
        import gpboost

        # GPBoost's Matérn-3/2 is also (1 + √3 r) exp(−√3 r); the inputs are already scaled here.
        X, X_test = (np.asarray(_scaled(x, gp), dtype=np.float64) for x in (data.X, data.X_test))
        y = data.y.astype(np.float64)
        start = time.perf_counter()
        model = gpboost.GPModel(
            gp_coords=X,
            cov_function="matern",
            cov_fct_shape=1.5,
            gp_approx="vecchia",
            num_neighbors=neighbours,
            likelihood="gaussian",
        )
        model.set_prediction_data(vecchia_pred_type="order_obs_first_cond_obs_only", num_neighbors_pred=neighbours)
        parameters = np.array([float(gp.noise), _variance(gp), 1.0])
        found = model.predict(gp_coords_pred=X_test, y=y, cov_pars=parameters, predict_var=True, predict_response=True)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, **scores(data, np.asarray(found["mu"]), np.asarray(found["var"]))}

    return run


def _matern32(A: np.ndarray, B: np.ndarray, gp: GP, rows: int = 64) -> np.ndarray:
    """Return the kernel matrix, computed in place by blocks of rows in cache: twice as fast as one expression."""
    K, squares = np.empty((len(A), len(B)), dtype=A.dtype), np.sum(B**2, axis=1)
    for i in range(0, len(A), rows):
        some, r = A[i : i + rows], K[i : i + rows]
        np.matmul(-2 * some, B.T, out=r)
        r += np.sum(some**2, axis=1)[:, None]
        r += squares
        np.maximum(r, 0, out=r)
        r *= 3
        np.sqrt(r, out=r)
        decay = np.exp(-r)
        r += 1
        r *= decay
        r *= A.dtype.type(_variance(gp))
    return K


def _gpytorch_model(data: Dataset, gp: GP, dtype: Any) -> Any:
    import gpytorch
    import torch

    class Exact(gpytorch.models.ExactGP):
        def __init__(self) -> None:
            smallest = gpytorch.constraints.GreaterThan(1e-8)
            likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=smallest)
            super().__init__(torch.tensor(data.X, dtype=dtype), torch.tensor(data.y, dtype=dtype), likelihood)
            likelihood.noise = float(gp.noise)
            self.mean, self.kernel = gpytorch.means.ZeroMean(), _torch_kernel(gp)

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    return Exact().to(dtype).eval()


def _torch_kernel(gp: GP) -> Any:
    import gpytorch
    import torch

    assert isinstance(gp.kernel, Matern32)
    lengthscale = np.array(gp.kernel.lengthscale)
    matern = gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=lengthscale.size)
    matern.lengthscale = torch.tensor(lengthscale)[None]
    kernel = gpytorch.kernels.ScaleKernel(matern)
    kernel.outputscale = _variance(gp)
    return kernel


def _scaled(X: np.ndarray, gp: GP) -> np.ndarray:
    assert isinstance(gp.kernel, Matern32)
    return X / np.asarray(gp.kernel.lengthscale)


def _variance(gp: GP) -> float:
    assert isinstance(gp.kernel, Matern32)
    return float(gp.kernel.variance)


MODULES = {
    "sklearn": "sklearn.gaussian_process",
    "gpytorch": "gpytorch",
    "gpytorch-svgp": "gpytorch",
    "botorch": "botorch",
    "gpboost-100": "gpboost",
    "gpboost-200": "gpboost",
}
"""Module of each peer, imported before its memory is measured, as JAX is."""

PEERS: dict[str, Callable[[Dataset, GP], Result]] = {
    "scipy-float64": scipy_cholesky(np.float64),
    "scipy-float32": scipy_cholesky(np.float32),
    "sklearn": sklearn_gpr,
    "gpytorch": gpytorch_cg,
    "gpytorch-svgp": gpytorch_svgp,
    "botorch": botorch_paths,
    "gpboost-100": gpboost_vecchia(100),
    "gpboost-200": gpboost_vecchia(200),
}
