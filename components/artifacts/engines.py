"""Output of build_engine: an engine per variant with manifest, layers and a summary."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from qatline.components.artifacts.folder import StepFolder
from qatline.components.artifacts.record import Record, Text
from qatline.components.artifacts.variants import Variant

if TYPE_CHECKING:
    from qat_lib.engines.values import EngineLayer

_MANIFEST, _LAYERS = ".engine.json", ".layers.json"


class EngineInfo(Record):
    """Backend of an engine, and the device that it was built on."""

    backend: Text = ""
    backend_version: Text = ""
    device: Mapping[str, Any] = Field(default_factory=dict)


class EngineBuild(Record):
    """The build of one engine.

    Attributes:
        layers: number of layers by precision.
        float_weighted_layers: names of the weighted layers that do not run in INT8.
        prediction: score of the fusion analysis's prediction; absent for an engine without
            quantizers, None if they cannot be compared.
    """

    bytes: int
    build_seconds: float
    int8_layers: int
    weighted_layers: int
    backend_version: str
    device: dict[str, Any]
    digest: str
    layers: dict[str, int]
    float_weighted_layers: list[str]
    warnings: list[str]
    prediction: dict[str, Any] | None = None

    def numbers(self) -> dict[str, float]:
        """Return its metrics by name."""
        return {
            name: getattr(self, name)
            for name in ("bytes", "build_seconds", "int8_layers", "weighted_layers")
        }


class LayerList(Record):
    """Layers of an engine as reported by its backend; see ``qat_lib.engines.EngineLayer``."""

    layers: list[dict[str, Any]]


class BuildSummary(Record):
    """The builds of all engines by variant."""

    backend: str
    variants: dict[str, EngineBuild]


class Engines(StepFolder):
    """The built engines."""

    STEP: ClassVar[str] = "build_engine"
    SUMMARY: ClassVar[str] = "build.json"
    ENGINES: ClassVar[str] = "*.engine"
    MANIFESTS: ClassVar[str] = f"*{_MANIFEST}"
    LAYERS: ClassVar[str] = f"*{_LAYERS}"
    MANIFEST_TAGS: ClassVar[tuple[str, ...]] = (
        *("backend", "backend_version", "device"),
        *("digest", "precision", "quantized"),
    )

    def engine(self, variant: Variant) -> Path:
        """Return the engine file of a variant."""
        return self.file(variant.engine)

    def built(self) -> list[Variant]:
        """Return the variants with an engine."""
        return [variant for variant in Variant if self.has(variant.engine)]

    def write_summary(self, summary: BuildSummary) -> None:
        """Write the summary of the builds."""
        self.write(self.SUMMARY, summary.to_dict())

    def infos(self) -> Mapping[str, EngineInfo]:
        """Return the backend of each engine, by variant."""
        return {
            path.name.removesuffix(_MANIFEST): self.read(path.name, EngineInfo)
            for path in sorted(self.path.glob(self.MANIFESTS))
        }

    def layers(self, variant: Variant) -> list[EngineLayer]:
        """Return an engine's layers as reported by its backend; empty if it reports none."""
        from qat_lib.engines.values import EngineLayer

        name = f"{variant}{_LAYERS}"
        if not self.has(name):
            return []
        try:
            return [EngineLayer.from_dict(layer) for layer in self.read(name, LayerList).layers]
        except (KeyError, TypeError) as error:
            raise self.damaged(name, f"expected layers of an engine: {error}") from error
