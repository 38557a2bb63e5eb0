from pathlib import Path

import pytest
import tomllib

from qat_lib.support.extras import EXTRAS, install_hint, missing_hint, missing_packages


def test_extras_are_those_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert set(EXTRAS) == set(project["optional-dependencies"]) - {"all"}


def test_missing_hint_knows_packages_of_extras_only() -> None:
    hint = missing_hint(ModuleNotFoundError("No module named 'kfp'", name="kfp.dsl"))
    assert hint is not None
    assert hint.endswith(
        "the package kfp, which is not installed. Install it with: pip install 'qatline[pipeline]'"
    )
    assert missing_hint(ModuleNotFoundError("x", name="my_module")) is None
    assert missing_hint(ImportError("cannot import name 'x' from 'keras'", name="keras")) is None


@pytest.mark.parametrize(
    ("packages", "extras"), [(["sklearn"], "data"), (["kfp", "mlflow", "PIL"], "pipeline,data")]
)
def test_install_hint_names_each_extra_once(packages: list[str], extras: str) -> None:
    assert f"'qatline[{extras}]'" in install_hint(packages)


def test_missing_packages_are_not_imported() -> None:
    assert missing_packages(["json", "no_such_package"]) == ["no_such_package"]
