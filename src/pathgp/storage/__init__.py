"""Save and load models as safetensors files. Loading executes nothing and validates what it reads."""

from pathgp.storage.model_file import load, metadata, save

__all__ = ["load", "metadata", "save"]
