"""The paper's figures and tables, an experiment a file: whatever module stands here with an EXPERIMENT is listed."""

import importlib
import pkgutil

from pathgp_paper.experiments.base import Experiment


def experiments() -> list[Experiment]:
    """All experiments, in the order of the names of their files."""
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return [module.EXPERIMENT for module in modules if hasattr(module, "EXPERIMENT")]


def named(name: str) -> Experiment:
    """The experiment of that name."""
    for experiment in experiments():
        if experiment.name == name:
            return experiment
    known = ", ".join(experiment.name for experiment in experiments())
    raise ValueError(f"NAME is {name!r}, but the experiments are {known}.")
