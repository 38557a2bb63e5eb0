#!/usr/bin/env python3
"""Write software bills of materials for the wheel and the images.

The wheel's lists what it may install, an image's what it does install.

    python scripts/sbom.py [-o dist/sbom]

Writes CycloneDX JSON from uv.lock, without network: ``wheel.cdx.json`` with the packages of every
extra, and for each image of the Dockerfile ``<target>.cdx.json`` with those of the extras that it
installs. The packages of the images' base, Debian and CPython, are not in it: a scanner of images
lists them.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_INSTALL = re.compile(r"FROM \S+ AS (\w+)-build\n(?:(?!FROM ).*\n)*?RUN .*uv sync (.*)")


def image_extras(dockerfile: str) -> dict[str, list[str]]:
    """Return the extras that each image of a Dockerfile installs, by target."""
    return {
        target: re.findall(r"--extra (\S+)", line) for target, line in _INSTALL.findall(dockerfile)
    }


def export(target: Path, options: list[str]) -> None:
    """Write the bill of the locked packages chosen by ``uv export`` options."""
    command = [
        "uv",
        "export",
        "--quiet",
        "--frozen",
        "--no-default-groups",
        "--preview-features",
        "sbom-export",
    ]
    command += ["--format", "cyclonedx1.5", "--output-file", str(target), *options]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=ROOT / "dist" / "sbom", help="folder to write to"
    )
    folder: Path = parser.parse_args(arguments).output
    folder.mkdir(parents=True, exist_ok=True)
    images = image_extras((ROOT / "Dockerfile").read_text(encoding="utf-8"))
    options = {
        target: [f"--extra={extra}" for extra in extras] for target, extras in images.items()
    }
    for name, chosen in {"wheel": ["--all-extras"], **options}.items():
        file = folder.absolute() / f"{name}.cdx.json"
        export(file, chosen)
        print(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
