"""The linear system (K + Σ)W = B."""

from pathgp.system.system import System, Targets

__all__ = ["System", "Targets"]
