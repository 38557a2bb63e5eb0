"""The container images: pinned, without root or secrets.

Their install lines work in a clean environment.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib
from dockerfile import Builder, chain, read_stages

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "Dockerfile"
TARGETS = ("training", "engine")


@pytest.mark.parametrize("target", TARGETS)
def test_user_is_numeric_and_not_root(target: str) -> None:
    users = [
        item.text for item in read_stages(DOCKERFILE)[target].instructions if item.name == "USER"
    ]
    assert users == ["10001:10001"]
    names = [item.name for item in read_stages(DOCKERFILE)[target].instructions]
    assert names.index("USER") < names.index("ENTRYPOINT")


def test_bases_are_pinned_by_version_or_digest() -> None:
    stages = read_stages(DOCKERFILE)
    bases = {stage.base for stage in stages.values()} - set(stages)
    assert bases == {"${PYTHON_IMAGE}"}
    (pinned,) = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", DOCKERFILE.read_text(), flags=re.MULTILINE)
    assert re.search(r"^python:3\.1[123]\.\d+-slim-\w+$|@sha256:[0-9a-f]{64}$", pinned)


def test_installs_are_pinned_or_locked() -> None:
    for stage in read_stages(DOCKERFILE).values():
        for item in stage.instructions:
            if item.name == "RUN" and "uv sync" in item.text:
                assert "--frozen" in item.text
                assert "--no-default-groups" in item.text
            elif item.name == "RUN" and "pip install" in item.text:
                assert re.search(r"pip install \w+==[\d.]+$", item.text)


def test_the_extras_that_the_images_install_exist() -> None:
    known = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    )
    used = set(re.findall(r"--extra (\S+)", DOCKERFILE.read_text()))
    assert used <= known


def test_dependencies_are_installed_before_the_code_is_copied() -> None:
    stages = read_stages(DOCKERFILE)
    for target in TARGETS:
        order = [
            (item.name, item.text)
            for stage in chain(stages, f"{target}-build")
            for item in stage.instructions
        ]
        dependencies = next(
            i for i, (_, text) in enumerate(order) if "--no-install-project" in text
        )
        code = next(
            i
            for i, (name, text) in enumerate(order)
            if name == "COPY" and text.startswith("qat_lib")
        )
        assert dependencies < code


def test_no_secret_is_in_the_images() -> None:
    text = DOCKERFILE.read_text()
    assert not re.search(r"(?i)(password|passwd|secret|token|api_?key|access_?key)", text)
    assert not re.search(r"https?://[^/\s]*@", text)
    assert not re.search(r"^(ADD|COPY)\s+(\.|\*)\s", text, flags=re.MULTILINE)


def test_build_context_is_an_allowlist() -> None:
    lines = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert lines[0] == "*"
    allowed = {line[1:] for line in lines if line.startswith("!")}
    copied = set()
    for stage in read_stages(DOCKERFILE).values():
        for item in stage.instructions:
            if item.name == "COPY" and not item.text.startswith("--from"):
                copied |= set(item.text.split()[:-1])
    assert copied == allowed
    assert all((ROOT / name).exists() for name in allowed)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("target", TARGETS)
def test_install_lines_work_in_a_clean_environment(target: str, tmp_path: Path) -> None:
    builder = Builder(read_stages(DOCKERFILE), ROOT, tmp_path, Path(sys.executable))
    environment = builder.build(target)
    shown = subprocess.run(
        builder.entry_point(target),
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "From a Keras model to a checked INT8 engine" in shown.stdout
    version = subprocess.run(
        ["qatline", "--version"], env=environment, capture_output=True, text=True, check=True
    )
    assert version.stdout.startswith("qatline ")
    # What each image must be able to import, and what it must not carry.
    steps = {"training": "train_baseline export_onnx", "engine": "build_engine evaluate promote"}[
        target
    ].split()
    code = "".join(f"import qatline.components.steps.{step}\n" for step in steps)
    code += "import importlib.util as u\nprint(bool(u.find_spec('tensorflow')), qat_lib.__file__)"
    done = subprocess.run(
        ["python", "-c", f"import qat_lib\n{code}"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    has_tensorflow, place = done.stdout.split()
    assert has_tensorflow == str(target == "training")
    assert place.startswith(str(tmp_path / "opt" / "venv"))
