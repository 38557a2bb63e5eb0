"""Build environment of an engine: CPU, git state, Python.

Everything is read, nothing assumed. Missing where it can't be read.
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

# Instruction sets that decide which INT8 and float kernels a CPU backend can use.
_RELEVANT = ("avx2", "fma", "f16c", "avx512", "avx_vnni", "amx", "asimd", "sve", "i8mm", "bf16")

_WITH_WIDE_SUMS = ("vnni", "amx_int8")
"""Flags of x86 CPUs whose INT8 kernels add products in 32 bits."""

# Values of oneDNN's ONEDNN_MAX_CPU_ISA, which OpenVINO obeys, that rule out VNNI and AMX.
_WITHOUT_VNNI = ("SSE41", "AVX", "AVX2", "AVX512_CORE")

CPU_DEVICE_KEYS: Mapping[str, type] = {"architecture": str, "name": str, "flags": list}
"""What ``cpu_device`` describes, with the types."""


def cpu_device() -> dict[str, Any]:
    """Describe this CPU: architecture, model name, and kernel-relevant flags.

    Flags that ``ONEDNN_MAX_CPU_ISA`` keeps kernels from using are left out.
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
    """Whether ``ONEDNN_MAX_CPU_ISA`` keeps kernels from VNNI, AMX and 16-bit floats."""
    return os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in _WITHOUT_VNNI


def cpu_kind(device: Mapping[str, Any] | None = None) -> Cpu:
    """Return the kind of a CPU, on which the rounding of INT8 weights depends.

    Args:
        device: description of the CPU, as in an engine's manifest; default: this machine's.

    Returns:
        ``"vnni"``: x86 with VNNI or AMX; ``"avx2"``: x86 without, where sums of two products
        saturate at 16 bits (``qat_lib.engines.pair_sums``); ``"arm"``: everything else.
    """
    described = cpu_device() if device is None else device
    if described.get("architecture") not in _X86:
        return "arm"
    flags = " ".join(described.get("flags", ()))
    return "vnni" if any(flag in flags for flag in _WITH_WIDE_SUMS) else "avx2"


def cpu_refusal(library: str, version: str, manifest: EngineManifest) -> str | None:
    """Return why a CPU engine can't run here.

    The reason is another version, another architecture, another kind of CPU, whose INT8 kernels add
    products otherwise, or missing instructions.

    Args:
        library: name of the library that runs it.
        version: its version here.
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
    missing = sorted(set(built_on["flags"]) - set(here["flags"]))
    return (
        f"it was built on {built_on['name']}; this CPU lacks {', '.join(missing)}."
        if missing
        else None
    )


def git_state(directory: Path | None = None) -> dict[str, Any] | None:
    """Return commit and whether there are uncommitted changes.

    None outside a repository or without git.
    """
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
