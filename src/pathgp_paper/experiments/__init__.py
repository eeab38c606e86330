"""The paper's figures and tables, one experiment per file. Every module here that defines EXPERIMENT is listed."""

import importlib
import pkgutil

from pathgp_paper.experiments.base import Experiment


def experiments() -> list[Experiment]:
    """Return all experiments, ordered by file name."""
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return [module.EXPERIMENT for module in modules if hasattr(module, "EXPERIMENT")]


def named(name: str) -> Experiment:
    """Return the experiment with this name. Raise `ValueError` if there is none."""
    for experiment in experiments():
        if experiment.name == name:
            return experiment
    known = ", ".join(experiment.name for experiment in experiments())
    raise ValueError(f"NAME is {name!r}, but the experiments are {known}.")
