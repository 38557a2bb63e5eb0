"""Which classes a spec can name for a PyTorch model."""

from torch import nn

from qat_lib.torch.catalog import ModuleCatalog


def test_catalog_knows_classes_functions_and_models_own() -> None:
    catalog = ModuleCatalog(["Mine"])
    assert catalog.class_named("Conv2d") is nn.Conv2d
    assert catalog.class_named("add") == "add"
    assert catalog.class_named("Mine") == "Mine"
    assert catalog.class_named("Conv2D") is None
    assert {"Mine", "Linear", "cat"} <= set(catalog.class_names())
    assert catalog.class_names() == sorted(catalog.class_names())


def test_catalog_says_what_to_do() -> None:
    catalog = ModuleCatalog()
    assert catalog.remedy("Mine") == "write QuantMine with qat_lib.torch.nn.QuantMixin"
    assert "QuantMine with qat_lib.torch.nn.QuantMixin" in catalog.advice("Mine")
