"""Free memory of this process, limited by the machine, containers and the process itself; and memory handed back."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_UNKNOWN = 8 * 2**30  # where the system does not say
_BYTES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_UNLIMITED = 2**60  # control groups of version 1 write a number as large as this for "no limit"

# Files of a control group: limits, use, and the line of memory.stat that says how much of the use is cache that can be
# reclaimed.
_VERSION_1 = (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = (("memory.max", "memory.high"), "memory.current", "inactive_file")


def check_fits(
    needed: float,
    name: str,
    got: str,
    advice: str,
    device: torch.device | None = None,
    error: type[Exception] = ValueError,
) -> None:
    """Refuse a request that does not fit in memory, before it is made.

    Args:
        needed: Bytes needed.
        name: Name of what needs them, for the message.
        got: What was asked for, in words.
        advice: What to do instead.
        device: Device on which it will lie.
        error: Class of the error that is raised if fewer bytes are free.

    Examples:
        >>> check_fits(1e18, "the Gram matrix", "500,000,000 examples", "Take fewer.")
        Traceback (most recent call last):
        ...
        ValueError: the Gram matrix must fit in memory. Got 500,000,000 examples, 9.31e+08 GiB where ... Take fewer.
    """
    free = free_bytes(device)
    if needed > free:
        raise error(
            f"{name} must fit in memory. Got {got}, {readable(needed)} where {readable(free)} are free. {advice}"
        )


def free_bytes(device: torch.device | None = None, root: Path = Path("/")) -> float:
    """Bytes that this process may still take: the least that the machine, its control groups and its limits leave.

    A container is one control group or several nested ones. Page caches count as free, as they do for the kernel.
    Devices that do not report their memory count as infinite. ``proc`` and ``sys`` are read under ``root``.
    """
    if device is not None and device.type == "cuda":
        import torch

        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    if device is not None and device.type != "cpu":
        return math.inf
    return max(0.0, min(_of_machine(root), _of_process(), *_of_groups(root)))


def readable(size: float) -> str:
    """A size in readable units, such as ``1.5 GiB``."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GiB"


def give_back() -> None:
    """Hand freed memory back to the system: glibc keeps the holes left by tensors of a few megabytes."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):  # musl has none
        trim(0)


def parse_memory(memory: int | str | None) -> int:
    """Bytes from a number or from text such as ``"4 GiB"``; ``None`` means half of what this machine has free.

    Raises:
        ValueError: If ``memory`` is neither, or not positive.

    Examples:
        >>> parse_memory("1.5 GB"), parse_memory(1024)
        (1500000000, 1024)
    """
    if memory is None:
        return int(free_bytes() // 2)
    try:
        text = str(memory).upper().replace(" ", "")
        number = text.rstrip("KMGIB")
        size = int(float(number) * _BYTES[text[len(number) :]])
    except (KeyError, ValueError):
        size = 0
    if size <= 0:
        raise ValueError(f"memory must be a positive number of bytes or text such as '4 GiB'. Got {memory!r}.")
    return size


def _of_machine(root: Path) -> float:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):  # counts what caches would give back
            return 1024.0 * int(line.split()[1])
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # not offered by this system
        return _UNKNOWN


def _of_process() -> float:
    """Bytes that ``ulimit -v`` leaves."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return math.inf
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (ImportError, OSError, ValueError, IndexError):  # not on Windows, nor without /proc
        return math.inf
    return limit - used


def _of_groups(root: Path) -> Iterator[float]:
    """Bytes left by each control group: that of the process, and every group around it up to the mount point."""
    places = dict(_memberships(root))
    for version, inside, mount in _mounts(root):
        if version not in places:
            continue
        limits, used, cached = _VERSION_2 if version == 2 else _VERSION_1
        own = mount / _below(places[version], inside)
        for group in (place for place in (own, *own.parents) if place.is_relative_to(mount)):
            limit = min((_number(group / name) for name in limits), default=math.inf)
            if limit < _UNLIMITED:
                yield limit - _number(group / used, 0) + _statistic(group / "memory.stat", cached)


def _memberships(root: Path) -> Iterator[tuple[int, str]]:
    """Version and path of each memory control group that this process is in."""
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield 2, path
        elif "memory" in controllers.split(","):
            yield 1, path


def _mounts(root: Path) -> Iterator[tuple[int, str, Path]]:
    """Version, path of the mounted group, and mount point."""
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        place, kind = before.split(), after.split()
        if len(place) < 5 or len(kind) < 3:
            continue
        at = root / place[4].replace("\\040", " ").lstrip("/")
        if kind[0] == "cgroup2":
            yield 2, place[3], at
        elif kind[0] == "cgroup" and "memory" in kind[2].split(","):
            yield 1, place[3], at


def _below(path: str, mounted: str) -> str:
    """A group's path relative to the mounted group; the mounted group itself if the path lies elsewhere."""
    mounted = mounted.rstrip("/")
    inside = path == mounted or path.startswith(f"{mounted}/")
    return path.removeprefix(mounted).strip("/") if inside and ".." not in path.split("/") else ""


def _number(file: Path, missing: float = math.inf) -> float:
    text = next(_lines(file), "").strip()
    return float(text) if text.isdecimal() else missing  # "max" is no number


def _statistic(file: Path, name: str) -> float:
    return next((float(line.split()[1]) for line in _lines(file) if line.startswith(f"{name} ")), 0.0)


def _lines(file: Path) -> Iterator[str]:
    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            yield from (line.rstrip("\n") for line in lines)
    except OSError:  # another system, or another version
        return
