# Each target sets up all it needs: a .venv from the pinned versions of requirements.lock.
PYTHON ?= python3
BIN := .venv/bin
export JAX_PLATFORMS ?= cpu

.PHONY: demo test test-float64 test-oldest test-slow lint docs wheel bench lock clean

.venv/.done: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

demo: .venv/.done
	$(BIN)/python -m pathgp_paper.experiments.toy --out demo.png

test: .venv/.done
	$(BIN)/python -m pytest

test-float64: .venv/.done
	PATHGP_TEST_X64=1 $(BIN)/python -m pytest

# The oldest versions that pyproject.toml admits, in an environment of its own; the lock has the newest.
test-oldest:
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check --constraint .ci/oldest.txt \
		--editable ".[plots,files,optuna,xarray]" beartype hypothesis pandas polars "pytest<9" pytest-xdist
	.venv-oldest/bin/python -m pytest

test-slow: .venv/.done
	PATHGP_TEST_OPTIMISED=1 $(BIN)/python -m pytest -m slow

lint: .venv/.done
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

docs: .venv/.done
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site

# In an environment of its own, with the pinned versions of what the library needs and no more, away from this folder.
wheel: .venv/.done
	rm -rf dist .venv-wheel
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
	$(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock \
		"$$(ls dist/pathgp-*.whl)[files]"
	cp .ci/smoke.py .venv-wheel/smoke.py
	cd .venv-wheel && env -u PYTHONPATH bin/python smoke.py bin/pathgp

bench: .venv/.done
	$(BIN)/pathgp bench kernel
	$(BIN)/python -m pathgp_paper.bench.tiled_solve
	$(BIN)/pathgp bench solve --dataset synthetic

lock:
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet --upgrade "hatchling>=1.27" editables ".[dev]"
	.venv-lock/bin/python -m pip freeze --exclude pathgp > requirements.lock
	rm -rf .venv-lock

clean:
	rm -rf .venv .venv-oldest .venv-wheel dist .pytest_cache .ruff_cache demo.png site
