"""What an engine was built on: CPU, git state, Python. Read, never assumed; missing where it can't be read."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Any

# Instruction sets that decide which INT8 and float kernels a CPU backend can use.
_RELEVANT = ("avx2", "fma", "f16c", "avx512", "avx_vnni", "amx", "asimd", "sve", "i8mm", "bf16")


def cpu_device() -> dict[str, Any]:
    """Describe this machine's CPU: architecture, model name, and the flags that matter to kernels."""
    name, flags = platform.processor() or platform.machine(), []
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "model name":
            name = value
        elif key in ("flags", "Features"):
            flags = sorted(flag for flag in value.split() if flag.startswith(_RELEVANT))
            break
    return {"kind": "cpu", "architecture": platform.machine(), "name": name, "flags": flags}


def git_state(directory: Path | None = None) -> dict[str, Any] | None:
    """Return commit and whether there are uncommitted changes; None outside a repository or without git."""
    where = str(directory or Path.cwd())
    try:
        commit = _git(where, "rev-parse", "HEAD")
        return {"commit": commit, "dirty": bool(_git(where, "status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _git(where: str, *arguments: str) -> str:
    result = subprocess.run(["git", "-C", where, *arguments], capture_output=True, text=True, check=True, timeout=10)
    return result.stdout.strip()
