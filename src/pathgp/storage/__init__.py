"""Save and load models as safetensors files. Loading executes nothing and validates what it reads."""

from pathgp.storage.model_file import Classes, Metadata, Path, load, metadata, reraise_with_path, save

__all__ = ["Classes", "Metadata", "Path", "load", "metadata", "reraise_with_path", "save"]
