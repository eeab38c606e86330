"""Description of the machine on which a number was measured."""

import os
import pathlib
import platform
from typing import Any


def machine() -> dict[str, Any]:
    """Return the processor, the number of cores, and the Python version."""
    return {"processor": _processor(), "cores": os.cpu_count(), "python": platform.python_version()}


def _processor() -> str:
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
