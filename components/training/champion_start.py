"""Training that starts from the champion's FP32 weights."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qat_lib.errors import QatlineError
from qatline.components.artifacts import Baseline
from qatline.components.artifacts.data_info import DatasetInfo
from qatline.components.registry.access import current_champion, run_registry
from qatline.components.registry.package import BASELINE, Champion, fetch_champion
from qatline.components.settings import RegistrySettings
from qatline.components.tasks import open_task


def champion_network(
    settings: RegistrySettings,
    framework: Any,
    info: DatasetInfo,
    *,
    warn: Callable[[str], None],
) -> Any | None:
    """Return the FP32 network of the champion.

    Args:
        settings: the registered model.
        framework: framework that loads the network.
        info: description of the data; the network must fit it.
        warn: receives the reason if training starts from scratch instead.

    Returns:
        The network, or None without a champion or if its network does not fit.

    Raises:
        TrackingError: the store fails and tracking is required.
    """
    registry = run_registry(settings, warn)
    champion = current_champion(registry) if registry is not None else None
    if registry is None or champion is None:
        warn("retrain.start=champion: no champion exists yet; training begins from scratch")
        return None
    with tempfile.TemporaryDirectory() as place:
        try:
            fetched = fetch_champion(registry, champion, Path(place))
            _check_fit(fetched, info)
            network = framework.load(Baseline(Path(place) / BASELINE))
            framework.check_model(network, info.shapes, open_task(info))
            return network
        except (QatlineError, OSError, ValueError) as error:
            warn(
                f"retrain.start=champion: version {champion.number} can't be trained further "
                f"({error}); training begins from scratch"
            )
            return None


def _check_fit(fetched: Champion, info: DatasetInfo) -> None:
    if fetched.classes != info.classes:
        raise ValueError(
            f"it has the classes {', '.join(fetched.classes[:5]) or 'unknown'}; the data has "
            f"{', '.join(info.classes[:5])}"
        )
