"""The memory that this process can use, as far as Linux reports it."""

import pathlib
import re


def memory_limit(root: pathlib.Path = pathlib.Path("/")) -> int | None:
    """Return the bytes that are free or already used by this process, or the limit of its control groups if lower.

    Control groups of both versions are read, and all groups that contain them, because a container sees its own limit
    at the top of its hierarchy. Returns None if /proc does not give the memory, as on other systems than Linux.
    """
    status, meminfo = root / "proc/self/status", root / "proc/meminfo"
    if not (status.is_file() and meminfo.is_file()):
        return None
    free = _kilobytes(meminfo, "MemAvailable")
    own = _kilobytes(status, "VmRSS")
    return None if free is None else min([free + (own or 0), *_group_limits(root)])


def _kilobytes(path: pathlib.Path, name: str) -> int | None:
    found = re.search(rf"^{name}:\s+(\d+) kB", path.read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _group_limits(root: pathlib.Path) -> list[int]:
    groups = root / "proc/self/cgroup"
    limits = []
    for line in groups.read_text().splitlines() if groups.is_file() else []:
        _, controllers, group = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        mounted = root / "sys/fs/cgroup" / controllers
        # A line of version 2 names no controllers.
        file = "memory.limit_in_bytes" if controllers else "memory.max"
        place = pathlib.PurePosixPath(group.lstrip("/"))
        for at in (mounted / place, *(mounted / parent for parent in place.parents)):
            text = (at / file).read_text().strip() if (at / file).is_file() else "max"
            limits += [int(text)] if text.isdigit() else []
    return limits
