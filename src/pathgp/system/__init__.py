"""The linear system (K + Σ)W = B, its right-hand sides, and the merging of duplicate rows."""

from pathgp.system.system import System, Targets

__all__ = ["System", "Targets"]
