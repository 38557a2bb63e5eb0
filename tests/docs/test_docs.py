"""The documentation: blocks run, links and pictures exist, the site builds.

Every block runs as printed. Some commands stand for their expensive selves:
``pip`` and ``uv run`` use this environment instead of making one, and ``qatline run`` and ``qatline
sweep`` train for one epoch on few samples, the default network with few channels and layers, and a sweep makes one
trial. The commands themselves, unchanged, are the subject of the tests of whole runs.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from run_page import blocks

from qatline.pipelines.config.run_config import RunConfig, load_config

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
# What a page finds in its folder because the reader comes from another one.
COMES_AFTER = {
    "calibration.md": "how-to/library.md",
    "champion.md": "tutorials/getting-started.md",
    "engines.md": "how-to/library.md",
    "export.md": "how-to/library.md",
    "report.md": "tutorials/getting-started.md",
    "tensorrt.md": "how-to/library.md",
}
NEEDS_PACKAGE = {"pytorch.md": ("torch", "torch")}
SMALL = "--set model.options.width=8 --set model.options.blocks=0"
QUICK = [
    *("--set", "data.limit=300"),
    *("--set", "data.calibration_samples=32"),
    *("--set", "training.epochs=1"),
    *("--set", "qat.epochs=1"),
    *("--set", "engine.benchmark_seconds=0.05"),
    *("--set", "gate.max_drop=1"),
]

STANDS_FOR = {
    "pip": "exit 0",
    "uv": 'shift; while [[ "$1" == --* ]]; do shift 2; done; exec "$@"',
    "qatline": f"""
if [[ "$1" == run ]]; then
  [[ "$*" == *model.* ]] || set -- "$@" {SMALL}
  set -- "$@" {" ".join(QUICK)} --accept-rejected  # one epoch may be no better than chance
elif [[ "$1" == optimize ]]; then
  set -- "$@" --seconds 0.2
elif [[ "$1" == sweep ]]; then
  [[ "$*" != *--trials* ]] || set -- "$@" --trials 1
  set -- "${{@/=max,mse/=max}}"
  set -- "$@" {SMALL} {" ".join(QUICK)}
fi
exec "{{bin}}/qatline" "$@"
""",
    "pytest": 'exec "{bin}/pytest" --version',
    ".ci/run": "exit 0",
    "python": 'exec "{bin}/python" "$@"',
}


class Workplace:
    """A folder in which pages run, each one once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        self._tools = folder / "bin"
        self._done: set[str] = set()
        self.folder.mkdir()
        self._tools.mkdir()
        for name, body in STANDS_FOR.items():
            place = self.folder / name if name.startswith(".") else self._tools / name
            place.parent.mkdir(exist_ok=True)
            place.write_text(
                "#!/usr/bin/env bash\n"
                + body.replace("{bin}", str(Path(sys.executable).parent))
                + "\n"
            )
            place.chmod(0o755)

        environment = os.environ | {
            "PATH": f"{self._tools}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("run_page.py"))],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def run(self, page: Path) -> None:
        if page.name in self._done:
            return
        if page.name in COMES_AFTER:
            self.run(DOCS / COMES_AFTER[page.name])
        output = self._tools / "output"
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{page}\t{output}\n")
        assert self.process.stdout.readline() == "0\n", output.read_text()[-6000:]
        self._done.add(page.name)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    workplace = Workplace(tmp_path_factory.mktemp("docs"))
    with workplace.process:
        yield workplace
        workplace.process.terminate()


@pytest.mark.matrix
@pytest.mark.timeout(2400)
@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name
)
def test_every_block_of_a_page_runs(page: Path, workplace: Workplace) -> None:
    if page.name in NEEDS_PACKAGE:
        package, extra = NEEDS_PACKAGE[page.name]
        pytest.importorskip(package, reason=f"needs the extra qatline[{extra}]")
    workplace.run(page)


def test_docs_use_only_languages_that_run() -> None:
    for page in PAGES:
        languages = set(re.findall(r"^ *```(\w+)$", page.read_text(), flags=re.MULTILINE))
        assert languages <= {"python", "bash", "text", "yaml"}, page.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_configs_of_a_page_are_valid(page: Path, tmp_path: Path) -> None:
    for _, text in blocks(page, ["yaml"]):
        content = yaml.safe_load(text)
        if isinstance(content, dict) and content.keys() <= RunConfig.model_fields.keys():
            (tmp_path / "config.yaml").write_text(text)
            load_config(tmp_path / "config.yaml")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_of_a_page_are_there(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", text):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_anchors_of_links_exist(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?://)([^)#\s]*)#([^)\s]+)\)", page.read_text()):
        linked = page.parent / target if target else page
        headings = re.findall(r"^#+ (.+)$", linked.read_text(), flags=re.MULTILINE)
        slugs = [re.sub(r"[^\w -]", "", heading).strip().lower() for heading in headings]
        assert anchor in [re.sub(r"[ -]+", "-", slug) for slug in slugs], f"{target}#{anchor}"


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    assert {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} == set(
        re.findall(r": (\S+\.md)$", navigation, flags=re.MULTILINE)
    )


@pytest.mark.parametrize(
    ("tool", "page"),
    [
        ("cli_reference", "reference/cli.md"),
        ("config_reference", "reference/configuration.md"),
        ("findings", "reference/findings.md"),
        ("llms", "llms.txt"),
        ("measurements", "reference/measurements.md"),
        pytest.param("placement", "images/placement.svg", marks=pytest.mark.matrix),
    ],
)
def test_a_generated_page_is_up_to_date(tool: str, page: str) -> None:
    # As `python docs/tools/TOOL.py` finds its modules: the script's folder comes first.
    code = f"import sys; sys.path.insert(0, 'docs/tools'); import {tool}; sys.stdout.write({tool}.render())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (DOCS / page).read_text(), f"run: python docs/tools/{tool}.py"


def test_notebooks_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS / "tools")
    notebooks = importlib.import_module("notebooks")
    assert {path.name for path in notebooks.FOLDER.iterdir()} == {
        notebooks.target(page).name for page in notebooks.PAGES
    }
    for page in notebooks.PAGES:
        text = notebooks.target(page).read_text()
        assert text == notebooks.render(page), "run: python docs/tools/notebooks.py"
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        sources = ["".join(cell["source"]) for cell in cells]
        expected = [
            block.strip() for _, block in blocks(DOCS / page) if not block.startswith("pip ")
        ]
        assert [re.sub(r"^%%bash\n.*\n", "", source) for source in sources] == expected


@pytest.mark.matrix
def test_every_public_name_of_the_migration_table_exists() -> None:
    import qat_lib

    page = (DOCS / "how-to" / "coming-from-tensorflow-quantization.md").read_text()
    names = sorted(set(re.findall(r"`qat_lib\.(\w+)`", page)))
    assert len(names) > 8
    # In both orders: what one name imports must not make another one appear.
    for order in (names, names[::-1]):
        code = f"import qat_lib; [getattr(qat_lib, name) for name in {order}]"
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    for name in re.findall(r"`qat_lib\.utils\.(\w+)`", page):
        assert hasattr(qat_lib.utils, name), name


@pytest.mark.matrix
def test_file_formats_name_the_keys_that_are_written(tmp_path: Path) -> None:
    import keras
    import numpy as np
    import onnx

    import qat_lib
    from qat_lib.engines import BuildSpec, build_engine

    x = keras.Input((4, 4, 1))
    model = keras.Model(x, keras.layers.Dense(2)(keras.layers.Flatten()(x)))
    quantized = qat_lib.quantize_model(model)
    qat_lib.calibrate(quantized, np.ones((4, 4, 4, 1), np.float32))
    qat_lib.export_onnx(quantized, tmp_path / "m.onnx", target="openvino")
    build_engine(tmp_path / "m.onnx", BuildSpec(backend="openvino"), output=tmp_path / "m.engine")
    plan = qat_lib.plan_quantization(model).to_dict()
    manifest = json.loads((tmp_path / "m.engine.json").read_text())
    metadata = {entry.key for entry in onnx.load(tmp_path / "m.onnx").metadata_props}
    page = (DOCS / "reference" / "files.md").read_text()
    named = set(re.findall(r"`([\w.]+)`", page))
    assert metadata | set(plan) | set(manifest) <= named
    assert (plan["version"], manifest["format"]) == (1, 2)


def test_finding_codes_are_in_the_catalog() -> None:
    from qat_lib.analysis import CATALOG

    named = set()
    for page in PAGES:
        named |= set(re.findall(r"\b(?:V\d\d|H[1-9]|Q\d\d|C\d\d)\b", page.read_text()))
    assert len(named) > 8
    assert named <= set(CATALOG)


@pytest.mark.matrix
@pytest.mark.skipif(find_spec("mkdocstrings") is None, reason="needs the group docs")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [
        str(Path(sys.executable).parent / "mkdocs"),
        "build",
        "--strict",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "site" / "index.html").is_file()


@pytest.mark.parametrize("package", ["qat_lib", "qat_lib.torch"])
def test_every_public_name_is_in_the_reference(package: str) -> None:
    if package == "qat_lib.torch":
        pytest.importorskip("torch", reason="needs the extra qatline[torch]")
    public = importlib.import_module(package)
    page = (DOCS / "reference" / "api.md").read_text()
    described = {path.rpartition(".") for path in re.findall(r"^::: (\S+)$", page, flags=re.M)}
    of_torch = package == "qat_lib.torch"
    names = {name for place, _, name in described if ("qat_lib.torch" in place) == of_torch}
    modules = {name for name in public.__all__ if inspect.ismodule(getattr(public, name))}
    assert set(public.__all__) - modules <= names
