"""Checks before the first step.

They reject a run before training if a later step would reject it.

The checks inspect names, files and installed packages. They build nothing and import neither Keras
nor the data. ``qatline.pipelines.run.check`` begins with them.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from qat_lib.errors import ConfigError, DataError, MissingPackageError, StorageError
from qat_lib.support.extras import install_hint, missing_packages
from qatline.components.settings.source_settings import WITH_PATH
from qatline.components.storage.stored_file import split_pattern
from qatline.components.support.credentials import S3_ENDPOINT_VARIABLES, check_variables
from qatline.components.support.frameworks import FRAMEWORKS
from qatline.components.support.user_code import find_user_modules
from qatline.components.tracking.tracker import MODE_VARIABLE, URI_VARIABLE, tracking_mode
from qatline.components.training.model_source import APPLICATIONS
from qatline.components.training.quantization_choice import read_spec
from qatline.pipelines.config.run_config import RunConfig
from qatline.pipelines.run.findings import Check, Findings


def check_before_training(config: RunConfig) -> None:
    """Check the main pipeline's requirements on this machine, in about a second.

    Raises:
        MissingPackageError: a package is not installed.
        DataError: the data does not exist.
        ConfigError: a model, weights file, spec or case of the config does not exist, or there are
            several mistakes; the message lists all.
        SpecError: the quantization spec is wrong.
        BackendUnavailableError: the engine backend is not available.
        StorageError: the folder of the runs can't be written.
    """
    findings = Findings(config=config)
    findings.run(PREFLIGHT)
    findings.raise_mistakes()


def references(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield the key and the text of each ``module:name`` in a config."""
    name = config.model.name
    if ":" in name and not name.startswith((APPLICATIONS, "s3://")):
        yield "model.name", name
    if config.data.kind == "python":
        yield "data.name", config.data.name or ""
    if ":" in (config.task.name or ""):
        yield "task.name", config.task.name or ""
    for case in config.quantization.cases:
        if ":" in case:
            yield "quantization.cases", case
    for section in (config.training, config.qat):
        for key, reference, _ in section.references():
            yield f"{section.section}.{key}", reference


def check_environment(config: RunConfig) -> None:
    """Check the environment variables that a step or the launcher reads.

    Raises:
        ConfigError: a variable has a wrong value, or an address in it contains credentials.
    """
    tracking_mode()
    read = os.environ.get(MODE_VARIABLE) != "off" and config.tracking.uri is None
    check_variables(*S3_ENDPOINT_VARIABLES, *((URI_VARIABLE,) if read else ()))


def _check_variables(findings: Findings) -> None:
    check_environment(findings.config)


def _check_packages(findings: Findings) -> None:
    if missing := missing_packages(_packages(findings.config)):
        raise MissingPackageError(
            f"This run needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} "
            f"not installed. {install_hint(missing)}"
        )


def _check_references(findings: Findings) -> None:
    for key, reference in references(findings.config):
        module, _, attribute = reference.partition(":")
        with findings.of(key):
            findings.broken.add(reference)
            _check_import(key, module, attribute)
            findings.broken.discard(reference)


def _check_spec(findings: Findings) -> None:
    read_spec(findings.config.quantization)


def _check_backend(findings: Findings) -> None:
    from qat_lib.engines import choose_backend

    choose_backend(findings.config.engine.backend)


def _check_data(findings: Findings) -> None:
    data = findings.config.data
    path = data.path or ""
    folder, _ = split_pattern(path)
    is_there = Path(path).expanduser().exists() or (
        folder != path and Path(folder).expanduser().exists()
    )
    if data.kind in WITH_PATH and "://" not in path and not is_there:
        raise DataError(
            f"data.path: expected a {WITH_PATH[data.kind]} at {path}; there is none. Check the path."
        )


def _check_output(findings: Findings) -> None:
    folder = Path(findings.config.output).expanduser().absolute()
    found = next(each for each in (folder, *folder.parents) if each.exists())
    if not found.is_dir() or not os.access(found, os.W_OK):
        raise StorageError(
            f"output: expected a folder that can be written, received {folder}; {found} can't be."
        )


def _packages(config: RunConfig) -> Iterator[str]:
    yield from (
        "kfp",
        "tensorflow",
        "keras",
        "tf2onnx",
        "onnx_ir",
        "onnx",
        "onnxruntime",
        "PIL",
    )
    yield from FRAMEWORKS[config.model.framework].packages
    if config.data.kind == "digits":
        yield "sklearn"
    if (config.data.path or "").endswith(".parquet"):
        yield "pyarrow"
    if os.environ.get(MODE_VARIABLE) != "off":
        yield "mlflow"
    yield from {"triton": ["tritonclient"], "kserve": ["kserve", "tritonclient"]}.get(
        config.package.target or "", []
    )
    locations = (config.data.path, config.model.name, config.model.weights, config.package.publish)
    if any((location or "").startswith("s3://") for location in locations):
        yield "boto3"


def _check_model(findings: Findings) -> None:
    name = findings.config.model.name
    if name.startswith("s3://"):
        return
    if name.endswith(".keras"):
        if not Path(name).is_file():
            raise ConfigError(
                f"model.name: expected a Keras file at {name}; there is none. Check the path."
            )
    elif name.startswith(APPLICATIONS):
        _check_application(name.removeprefix(APPLICATIONS))


def _check_application(name: str) -> None:
    """Look up a model in the source of keras.applications; importing Keras takes seconds."""
    package = importlib.util.find_spec("keras")
    folders = package.submodule_search_locations if package is not None else None
    index = Path(next(iter(folders or [""]))) / "applications" / "__init__.py"
    known = (
        set(re.findall(r"\bimport\s+\w+\s+as\s+([A-Z]\w*)", index.read_text()))
        if index.is_file()
        else set()
    )
    if known and name not in known:
        raise ConfigError(
            f"model.name: keras.applications has no {name!r}. {_nearest(name, known)}"
        )


def _check_weights(findings: Findings) -> None:
    weights = findings.config.model.weights
    if weights in (None, "imagenet") or str(weights).startswith("s3://"):
        return
    if not Path(str(weights)).is_file():
        raise ConfigError(
            f"model.weights: expected a weights file at {weights}; there is none. Check the path."
        )


def _check_import(key: str, module: str, attribute: str) -> None:
    """Find a user's module and a name in its source on the Python path, without importing it."""
    find_user_modules()
    folders = list(sys.path)
    for depth in range(module.count(".") + 1):
        part = ".".join(module.split(".")[: depth + 1])
        spec = importlib.machinery.PathFinder.find_spec(part, folders)
        if spec is None:
            raise ConfigError(
                f"{key}: expected the module {module!r} on the Python path; there is none. Run "
                "the command from the folder that holds it, or put that folder on PYTHONPATH."
            )
        folders = list(spec.submodule_search_locations or [])
    names = _top_names(Path(spec.origin)) if spec is not None and spec.origin else None
    if names is not None and attribute not in names:
        raise ConfigError(
            f"{key}: the module {module!r} has no {attribute!r}. {_nearest(attribute, names)}"
        )


def _parse(path: Path) -> ast.Module | None:
    """Return the syntax tree of a source file, or None if it cannot be parsed."""
    if path.suffix != ".py":
        return None
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None  # the step reports more when it imports the file


def _top_names(path: Path) -> set[str] | None:
    """Return the top-level names that a source file defines or imports; None if unknown."""
    tree = _parse(path)
    if tree is None:
        return None
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(target.id for target in targets if isinstance(target, ast.Name))
        elif not isinstance(node, ast.Expr) and not _is_script_part(node):
            return None  # a condition or loop may define further names
    return None if "*" in names or "__getattr__" in names else names


def _is_script_part(node: ast.stmt) -> bool:
    """Return whether a statement is ``if __name__ == "__main__"``, inactive on import."""
    return isinstance(node, ast.If) and any(
        isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(node.test)
    )


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"Did you mean {near[0]!r}?" if near else f"It has: {', '.join(sorted(known))}."


PACKAGES, REFERENCES, MODEL, WEIGHTS = "packages", "user code", "model file", "weights file"
SPEC, BACKEND, DATA, OUTPUT = "quantization spec", "engine backend", "data path", "output folder"

PREFLIGHT = (
    Check(name="environment", reads=("tracking.uri",), function=_check_variables),
    Check(
        name=PACKAGES,
        reads=("data.kind", "data.path", "model"),
        function=_check_packages,
    ),
    Check(name=OUTPUT, reads=("output",), function=_check_output),
    Check(name=DATA, reads=("data.path", "data.kind"), function=_check_data),
    Check(name=MODEL, reads=("model.name",), function=_check_model),
    Check(name=WEIGHTS, reads=("model.weights",), function=_check_weights),
    Check(name=SPEC, reads=("quantization.spec",), function=_check_spec),
    Check(name=REFERENCES, function=_check_references),
    Check(name=BACKEND, reads=("engine.backend",), function=_check_backend, after=(PACKAGES,)),
)
"""Checks that take no time worth mentioning."""
