"""Server of a package: Open Inference Protocol over REST and gRPC, on KServe's server.

The served model takes raw data, and returns the engine's outputs and each sample's ``answer``.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

from qat_lib.errors import ConfigError, QatlineError
from qatline.components.serving.service import Service

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Options of a server.

    Args:
        port: port of REST, with ``/metrics`` for Prometheus.
        grpc_port: port of gRPC; 0 for none.
        waiting: number of waiting requests; the next one is refused with status 503.
        grace_seconds: time to answer running requests after a signal to stop.
    """

    port: int = 8080
    grpc_port: int = 8081
    waiting: int = 256
    grace_seconds: int = 30


def serve(service: Service, options: ServerOptions, *, watch: Watch | None = None) -> None:
    """Serve until SIGINT or SIGTERM, then answer the running requests.

    Args:
        service: the service.
        options: options of the server.
        watch: returns a new service after its change, else None; called in a thread.

    Raises:
        ConfigError: a port is in use.
    """
    for port in filter(None, (options.port, options.grpc_port)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("0.0.0.0", port))
            except OSError as error:
                raise ConfigError(
                    f"Port {port} can't be used: {error.strerror}. Choose another with --port or "
                    "--grpc-port."
                ) from error
    with mock.patch.object(sys, "argv", sys.argv[:1]):  # KServe reads the command line on import
        import kserve

    from qatline.components.serving.kserve_model import BinaryDataPlane, EngineModel, Repository

    model = EngineModel(service, waiting=options.waiting)
    models = Repository()
    server = kserve.ModelServer(
        http_port=options.port,
        grpc_port=options.grpc_port,
        enable_grpc=bool(options.grpc_port),
        registered_models=models,
        enable_latency_logging=False,
        grace_period=options.grace_seconds,
    )
    server.dataplane = BinaryDataPlane(model_registry=models)
    # A line per request costs more than small engines take; /metrics counts requests.
    for name in ("kserve", "kserve.trace", "uvicorn.access", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.WARNING)
    stopped = threading.Event()
    if watch is not None:
        threading.Thread(target=_follow, args=(watch, model, stopped), daemon=True).start()
    try:
        # KServe's default response class; the answers are the same.
        warnings.filterwarnings("ignore", message="ORJSONResponse is deprecated")
        server.start([model])
    finally:
        stopped.set()


@dataclass(frozen=True, kw_only=True)
class Watch:
    """A regular look for a new service.

    Args:
        look: returns a new service, or None without a change.
        seconds: time between two looks.
    """

    look: Callable[[], Service | None]
    seconds: float = 30.0


def _follow(watch: Watch, model: Any, stopped: threading.Event) -> None:
    while not stopped.wait(watch.seconds):
        try:
            found = watch.look()
        except QatlineError as error:
            # The store may be away for a while: the present engine goes on.
            logger.warning("the champion can't be read, so the server keeps its engine: %s", error)
            continue
        if found is not None:
            model.replace(found)
