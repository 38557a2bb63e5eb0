"""Build environment of an engine: CPU and git state.

All values are read from the system; unreadable values are omitted.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qat_lib.engines.manifest import EngineManifest
from qat_lib.options import Cpu

_X86 = ("x86_64", "AMD64")

# Instruction sets that determine the usable INT8 and float kernels of a CPU backend.
_RELEVANT = ("avx2", "fma", "f16c", "avx512", "avx_vnni", "amx", "asimd", "sve", "i8mm", "bf16")

# Flags of x86 CPUs with INT8 kernels that add products in 32 bits.
_WITH_WIDE_SUMS = ("vnni", "amx_int8")

# Values of oneDNN's ONEDNN_MAX_CPU_ISA (also used by OpenVINO) without VNNI and AMX.
_WITHOUT_VNNI = ("SSE41", "AVX", "AVX2", "AVX512_CORE")

CPU_DEVICE_KEYS: Mapping[str, type] = {"architecture": str, "name": str, "flags": list}
"""Keys of ``cpu_device`` with their types."""


def cpu_device() -> dict[str, Any]:
    """Describe this CPU: architecture, model name, and kernel-relevant flags.

    Flags disabled by ``ONEDNN_MAX_CPU_ISA`` are excluded.
    """
    name, flags = platform.processor() or platform.machine(), []
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = map(str.strip, line.partition(":"))
        if key == "model name":
            name = value
        elif key in ("flags", "Features"):
            flags = sorted(flag for flag in value.split() if flag.startswith(_RELEVANT))
            break
    if is_limited():
        flags = [flag for flag in flags if "vnni" not in flag and not flag.startswith("amx")]
    device = {"kind": "cpu", "architecture": platform.machine(), "name": name, "flags": flags}
    return {**device, "cpu": cpu_kind(device)}


def is_limited() -> bool:
    """Return whether ``ONEDNN_MAX_CPU_ISA`` disables VNNI, AMX and 16-bit floats."""
    return os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in _WITHOUT_VNNI


def cpu_kind(device: Mapping[str, Any] | None = None) -> Cpu:
    """Return the kind of a CPU, a criterion for the rounding of INT8 weights.

    Args:
        device: description of the CPU, as in an engine's manifest; default: this machine.

    Returns:
        ``"vnni"``: x86 with VNNI or AMX; ``"avx2"``: x86 without them, with sums of two products
        that saturate at 16 bits (``qat_lib.engines.pair_sums``); ``"arm"``: all others.
    """
    described = cpu_device() if device is None else device
    if described.get("architecture") not in _X86:
        return "arm"
    flags = " ".join(described.get("flags", ()))
    return "vnni" if any(flag in flags for flag in _WITH_WIDE_SUMS) else "avx2"


def cpu_refusal(library: str, version: str, manifest: EngineManifest) -> str | None:
    """Return the reason that a CPU engine can't run here, or None.

    Possible reasons are another version, another architecture, another kind of CPU with different
    INT8 sums, or missing instructions.

    Args:
        library: name of the engine's library.
        version: installed version of the library.
        manifest: the engine's manifest.
    """
    built_on, here = manifest.device, cpu_device()
    if manifest.backend_version != version:
        return f"it was built by {library} {manifest.backend_version}, here is {version}."
    if built_on["architecture"] != here["architecture"]:
        return (
            f"it was built for {built_on['architecture']}, this machine is {here['architecture']}."
        )
    kinds = cpu_kind(built_on), cpu_kind(here)
    if kinds[0] != kinds[1]:
        return (
            f"it was built and compared on {built_on['name']} ({kinds[0]}); the INT8 kernels of "
            f"this CPU ({kinds[1]}) are others."
        )
    # All recorded flags are required, since the used kernels are unknown.
    missing = sorted(set(built_on["flags"]) - set(here["flags"]))
    return (
        f"it was built on {built_on['name']}; this CPU lacks {', '.join(missing)}."
        if missing
        else None
    )


def git_state(directory: Path | None = None) -> dict[str, Any] | None:
    """Return the commit and whether it has uncommitted changes; None without git or repository."""
    where = str(directory or Path.cwd())
    try:
        commit = _git(where, "rev-parse", "HEAD")
        return {
            "commit": commit,
            "dirty": bool(_git(where, "status", "--porcelain", "--untracked-files=no")),
        }
    except (OSError, subprocess.SubprocessError):
        return None


def _git(where: str, *arguments: str) -> str:
    result = subprocess.run(
        ["git", "-C", where, *arguments], capture_output=True, text=True, check=True, timeout=10
    )
    return result.stdout.strip()
