"""Registry of a run and its champion."""

from __future__ import annotations

from collections.abc import Callable

from qat_lib.errors import TrackingError
from qatline.components.registry.registry import CHAMPION, RegisteredVersion, Registry
from qatline.components.settings.gate_settings import RegistrySettings
from qatline.components.settings.settings_base import Settings
from qatline.components.tracking.tracker import tracking_mode


def run_registry(
    settings: RegistrySettings, warn: Callable[[str], None] = lambda _: None
) -> Registry | None:
    """Return the registered model of a run, or None without one.

    Args:
        settings: the registry section with the model's name.
        warn: receives a warning if a name is set but registration is impossible.

    Raises:
        TrackingError: the store is unreachable and tracking is required.
    """
    if settings.name is None:
        return None
    mode = tracking_mode()
    if mode == "off":
        warn(
            f"registry.name is {settings.name!r}, but tracking is off: nothing is compared with "
            "its champion or registered"
        )
        return None
    # Imported late: MLflow takes seconds to import, and runs without tracking never need it.
    from qatline.components.registry.mlflow_registry import open_registry

    try:
        return open_registry(settings.name)
    except TrackingError as error:
        if mode == "required":
            raise
        warn(f"nothing is registered: {error}")
        return None


def current_champion(registry: Registry) -> RegisteredVersion | None:
    """Return the version that the alias ``champion`` points to."""
    number = registry.state().aliases.get(CHAMPION)
    if number is None:
        return None
    for version in registry.versions():
        if version.number == number:
            return version
    return None


def champion_digest(settings: Settings) -> dict[str, str]:
    """Return the champion's digest as a dependency of a step.

    Returns:
        ``{"registry.champion": digest}``, with ``"none"`` without a champion; empty without a
            registry.
    """
    registry = run_registry(settings) if isinstance(settings, RegistrySettings) else None
    if registry is None:
        return {}
    champion = current_champion(registry)
    return {"registry.champion": champion.digest if champion is not None else "none"}
