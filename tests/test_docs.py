"""The pages: their examples run, the site builds without a warning, and nothing in it comes from elsewhere."""

import ast
import os
import pathlib
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec

import pytest

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
ENVIRONMENT = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT / "src")}

# A page, numbers of it that are smaller here, and what must hold where its examples end: computed in another way where
# there is one, else with room for chance.
RUNS = [
    ("coming-from.md", {}, "assert np.abs(whole[2] - part[0]).max() < 1e-4; assert posterior.system.size == 62"),
    (
        "distributed.md",
        {"steps=50": "steps=5"},
        """
alone = condition(posterior.gp, X, y, num_samples=16, key=jax.random.key(1))
assert len(posterior.solution.weights.addressable_shards) == 4 and alone.info.solver == "Cholesky"
assert jnp.allclose(alone.mean(X[:5]), mean, atol=1e-3) and len(trace.loss) == 5
assert jnp.allclose(storage.load("model.safetensors").mean(X[:5]), mean, atol=1e-3)
assert abs(model.predict(X[:5]) - y[:5]).max() < 0.1
""",
    ),
    (
        "extending.md",
        {},
        """
import numpy as np
P = np.column_stack([np.cos(X[:, 0]), np.sin(X[:, 0])]).astype(np.float64)
ridge = np.linalg.solve(P.T @ P + 0.1 * np.eye(2), P.T @ np.asarray(y))  # the same process, by its two weights
assert np.allclose(wave.mean(X[:9]), P[:9] @ ridge, atol=1e-3)
exact = condition(gp, X, y, solver=solvers.Cholesky(), num_samples=8, key=jax.random.key(2))
assert bool(posterior.info.converged.all()) and np.allclose(posterior.samples(X), exact.samples(X), atol=0.1)
rmse = [record.result["rmse"] for record in base.load(EXPERIMENT, "smoke", out)]
assert report.publish(EXPERIMENT, "smoke", out).verdict == "agrees 1" and 0 < rmse[2] <= 1.05 * rmse[0]
assert (out / "passes" / "smoke" / "figure.png").read_bytes().startswith(b"\\x89PNG")
""",
    ),
    (
        "local.md",
        {"N = 1_000_000": "N = 1_500", "rows=25_000": "rows=300"},
        """
import numpy as np
from scipy.spatial.distance import cdist
def k(a, b):
    r = np.sqrt(3) * cdist(a, b) / 0.5
    return (1 + r) * np.exp(-r)
gain = np.linalg.solve(k(X, X) + 0.01 * np.eye(N), k(X, X[:5])).T
exact = 1 - np.sum(gain * k(X, X[:5]).T, axis=1)
assert posterior.solution.points.shape == (300, 2)
assert np.abs(mean - gain @ np.asarray(y)).max() < 0.5 * exact.min() ** 0.5  # a fraction of what is not known
assert np.abs(np.log(variance / exact)).max() < 0.7  # 16 samples: a standard error of 0.35 without the projection
""",
    ),
    (
        "limits.md",
        {},
        """
assert "did not reach the tolerance" in str(caught[0].message) and more.system.size == 320
assert posterior.info.solver == "Cholesky" and precise.solution.weights.dtype == np.float64
""",
    ),
    (
        "checkpoints.md",
        {},
        """
assert bool(posterior.info.converged.all()) and not checkpoint.files and not checkpoint.directory.exists()
again = ThompsonSampler.load(path)
assert again.told == 16 and len(again.pending) == 0 and again.best().y == sampler.best().y > -1
""",
    ),
    (
        "tutorials/tabular.md",
        {'load("rides.safetensors")': 'load("model.safetensors")'},  # the command line comes in a test of its own
        """
assert 0.92 < coverage < 0.98  # three standard deviations of a binomial of 500 around 0.95
assert 13 < (std**2 - std_of_function**2).mean() ** 0.5 < 17  # the noise is 15
assert model.posterior_.system.size == 800
""",
    ),
    (
        "tutorials/samples.md",
        {},
        """
from scipy.spatial.distance import cdist
def k(a, b):
    r = np.sqrt(5) * cdist(a, b) / 2.0
    return (1 + r + r**2 / 3) * np.exp(-r)
c, w = np.linspace(0, 10, 101)[:, None], np.full(101, 1 / 101)
gain = np.linalg.solve(k(X, X) + 0.04 * np.eye(50), k(X, c)).T
exact_mean = 2 + w @ gain @ (y - 2)
exact_sd = np.sqrt(w @ (k(c, c) - gain @ k(X, c)) @ w)
assert abs(np.mean(average) - exact_mean) < 4 * exact_sd / np.sqrt(512)
assert abs(np.std(average) / exact_sd - 1) < 4 / np.sqrt(2 * 512) + 0.05  # four deviations, and that of the features
assert at_worst_point <= anywhere <= 1 and posterior.num_samples == 1024
assert np.all(heights >= f.max(axis=0) - 1e-2)  # no worse than the best of 1001 points
assert np.allclose(slope_of_one[0], slopes[70, 2], atol=1e-3)
""",
    ),
    (
        "tutorials/optimisation.md",
        {"BATCH = 1000": "BATCH = 8"},
        "assert sampler.best().y > -0.52 and sampler.failed == 1  # which of 40 points at random happens once in ten",
    ),
    (
        "tutorials/million.md",
        {"N = 1_000_000": "N = 5_000"},
        """
assert posterior.info.solver == "SAP" and small.solution.weights.shape == (500, 17)
assert 0.005 < float(gp.noise) < 0.02 and error < 0.08 and small_error < 0.1  # y varies by 0.5
""",
    ),
]


def examples(page):
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)


@pytest.mark.parametrize(
    ("page", "smaller", "then"),
    [pytest.param(*run, id=run[0], marks=() if "/" in run[0] else pytest.mark.slow) for run in RUNS],
)
def test_the_examples_of_a_page_run_one_after_the_other(page, smaller, then, tmp_path):
    code = "\n".join(examples(page))
    for old, new in smaller.items():
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    command = [sys.executable, "-W", "error", "-c", code + then]
    run = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, cwd=tmp_path)
    assert run.returncode == 0, run.stderr


WITH_OTHERS = {
    "torch": """
h = 0.002
slope = lambda step: (posterior.sample(3)(x.detach().numpy() + step) - posterior.sample(3)(x.detach().numpy() - step))
expected = [slope(h * np.eye(2)[j])[0] / (2 * h) for j in range(2)]
assert np.allclose(x.grad[0].numpy(), expected, atol=0.05)
assert float(value) > float(posterior.sample(3)(rng.uniform(size=(2000, 2))).max()) - 0.01
""",
    "xarray": """
f = np.asarray(posterior.samples(X[:10]))
assert np.allclose(highest[0], f.max(axis=0), atol=1e-4) and len(hot) == (X[:10, 0] > 0.5).sum()
""",
    "optuna": "assert study.best_value < 0.5 and len(study.trials) == 12",
}
"""What must hold where the examples with a library end."""


@pytest.mark.slow
@pytest.mark.parametrize("library", WITH_OTHERS)
def test_the_examples_with_another_library_run(library, tmp_path):
    for needed in ("torch", "botorch") if library == "torch" else (library,):
        if find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    first, *others = examples("integrations.md")
    code = "\n".join([first, *(block for block in others if f"pathgp.integrations.{library}" in block)])
    command = [sys.executable, "-c", code + WITH_OTHERS[library]]
    run = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, cwd=tmp_path)
    assert run.returncode == 0, run.stderr


def test_the_quick_start_is_that_of_the_readme():
    """Which runs as a test of its own."""
    blocks = lambda path: re.findall(r"```(?:python|sh)\n(?:import|from|pathgp).*?```", path.read_text(), re.DOTALL)
    assert blocks(DOCS / "index.md") == blocks(ROOT / "README.md")
    assert len(blocks(DOCS / "index.md")) == 5


@pytest.mark.slow
def test_the_commands_of_the_tutorial_run(tmp_path):
    text = (DOCS / "tutorials/tabular.md").read_text()
    commands = re.findall(r"^pathgp ([^#\n]+)", text, flags=re.MULTILINE)
    assert len(commands) == 4
    data, *_, tables, frame = examples("tutorials/tabular.md")
    python = lambda *blocks: [sys.executable, "-c", "\n".join(blocks)]
    by_command = [[sys.executable, "-m", "pathgp", *shlex.split(command)] for command in commands]
    compared = "predicted = pd.read_csv('predictions.csv'); assert np.allclose(mean, predicted['mean'], rtol=1e-6)"
    for command in [python(data, tables), *by_command, python(data, frame, compared)]:
        run = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, cwd=tmp_path)
        assert run.returncode == 0, (command, run.stderr)
    assert (tmp_path / "predictions.csv").read_text().startswith("mean,sd,q0.025,q0.975")


def test_pictures_are_small_and_shown():
    for picture in (DOCS / "tutorials").glob("*.png"):
        assert picture.stat().st_size < 150_000, picture
        assert f"]({picture.name})" in picture.with_suffix(".md").read_text()


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="mkdocs is not installed")
def test_the_site_builds_without_a_warning_and_needs_nothing_from_elsewhere(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**ENVIRONMENT, "NO_MKDOCS_2_WARNING": "1", "NO_COLOR": "1"}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    assert "WARNING" not in run.stderr, run.stderr
    pages = {path: path.read_text() for path in tmp_path.rglob("*.html")}
    assert len(pages) == len(list(DOCS.rglob("*.md"))) + 1  # and 404.html
    for path, html in pages.items():
        loaded = re.findall(r'<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)="(https?:|//)', html)
        assert not loaded, path
        assert "<blockquote" not in html, path  # an example that was taken for a quotation
    api = pages[tmp_path / "api" / "index.html"]
    names = ["GP", "condition", "kernels.Matern32", "solvers.SAP", "likelihood.Exact", "thompson.maximize"]
    for name in (*names, "analysis.metrics.nll", "parallel.join", "integrations.optuna.PathGPSampler"):
        assert f'id="pathgp.{name}"' in api, name
    shown = re.sub(r"<[^>]+>", "", api)
    assert "Matern32(lengthscale=1.0, variance=1.0)" in shown  # fields as arguments, inherited and with their defaults
    assert "CG(steps=1000, rank=100" in re.sub(r"\s+", "", shown).replace(",", ", ")


PUBLIC = [
    *("pathgp", "pathgp.kernels", "pathgp.solvers", "pathgp.solvers.inducing", "pathgp.likelihood", "pathgp.thompson"),
    *("pathgp.storage", "pathgp.parallel", "pathgp.system", "pathgp.analysis.metrics", "pathgp.analysis.spectral"),
    *("pathgp.plots", "pathgp.integrations.optuna", "pathgp.integrations.torch", "pathgp.integrations.xarray"),
]
"""The modules whose `__all__` is public; those of other packages are for the library itself."""


def test_the_api_page_lists_exactly_the_public_names():
    """The names are read from the source, because an integration needs the library that it is for."""
    public = set()
    for module in PUBLIC:
        path = ROOT / "src" / module.replace(".", "/")
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        names = next(
            ast.literal_eval(text) for text in re.findall(r"^__all__ = (\[.*?\])$", path.read_text(), re.M | re.S)
        )
        public |= {f"{module}.{name}" for name in names} - set(PUBLIC)
    listed = re.findall(r"^::: (\S+)$", (DOCS / "api.md").read_text(), re.M)
    assert sorted(listed) == sorted(public)
