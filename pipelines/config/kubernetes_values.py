"""Values of the ``cluster`` section in Kubernetes notation: quantities, names, paths, durations."""

from __future__ import annotations

import posixpath
import re
from decimal import Decimal
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

_UNITS: dict[str, Decimal] = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{unit: Decimal(1000) ** power for power, unit in enumerate("MGTPE", start=2)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", start=1)},
}
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST = 2**31 - 1  # seconds; the API's field is an int32
_OBJECT = r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?"


def amount(quantity: str) -> Decimal:
    """Return a validated quantity as a number."""
    number, unit = re.fullmatch(r"([\d.]+)(\D*)", quantity).groups()  # type: ignore[union-attr]
    return Decimal(number) * _UNITS[unit]


def parse_seconds(value: Any) -> int:
    """Return a duration such as ``90s``, ``30m``, ``2h``, ``1d`` or 5400 in seconds.

    Raises:
        ValueError: it is not a duration between one second and 68 years.
    """
    match = re.fullmatch(r"([1-9]\d{0,9})([smhd]?)", str(value))
    seconds = int(match[1]) * _SECONDS[match[2]] if match else 0
    if not 1 <= seconds <= _LONGEST:
        raise ValueError(
            f"expected a duration such as 90s, 30m, 2h, 1d or seconds, received {value!r}"
        )
    return seconds


def _cpu(value: Any) -> str:
    """Return a number of CPUs in Kubernetes notation.

    YAML parses ``4`` and ``0.5`` as numbers.
    """
    if not re.fullmatch(r"\d+m|\d+(\.\d{1,3})?", str(value)) or not amount(str(value)):
        raise ValueError(
            f"expected a number of CPUs above 0, such as 4, 0.5 or 500m, received {value!r}"
        )
    return str(value)


def _memory(value: Any) -> str:
    """Return a size in the common notation of Kubernetes and kfp.

    Bare numbers would be bytes, a probable mistake, and are rejected.
    """
    if not re.fullmatch(r"\d+([KMGTPE]i|[MGTPE])", str(value)) or not amount(str(value)):
        raise ValueError(
            "expected a whole number above 0 with a unit, such as 512Mi or 16Gi, received "
            f"{value!r}"
        )
    return str(value)


def _resource_name(value: str) -> str:
    if not re.fullmatch(rf"{_OBJECT}/[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?", value):
        raise ValueError(
            "expected the name of a resource of the nodes (kubectl describe node), such as "
            f"nvidia.com/gpu, received {value!r}"
        )
    return value


def _secret_key(value: str) -> str:
    if not re.fullmatch(rf"{_OBJECT}/[\w.-]+", value):
        # The message omits the value: it may be the secret itself.
        raise ValueError(
            "expected a Kubernetes secret and its key, such as mlflow/password, received "
            "something else"
        )
    return value


def _variable(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*", value):
        raise ValueError(f"expected the name of an environment variable, received {value!r}")
    return value


def _object_name(value: str) -> str:
    if len(value) > 253 or not re.fullmatch(_OBJECT, value):
        raise ValueError(
            "expected the name of a Kubernetes object: lower-case letters, digits, - and ., "
            f"received {value!r}"
        )
    return value


def _mount_path(value: str) -> str:
    path = posixpath.normpath(value)
    if not value.startswith("/") or path in ("/", "//") or ":" in value:
        raise ValueError(f"expected an absolute folder below /, such as /data, received {value!r}")
    return path


def _image(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9][\w./:-]*(@sha256:[0-9a-f]{64})?", value):
        raise ValueError(
            "expected a container image, such as registry.example/qatline-python-train:0.1.0, "
            f"received {value!r}"
        )
    return value


def _bucket_address(value: str) -> str:
    if not re.fullmatch(r"(s3|minio|gs)://[^/\s?#@]+(/[^\s?#]*)?", value):
        raise ValueError(
            "expected a folder in an object store, such as s3://bucket/pipelines, received "
            f"{value!r}"
        )
    return value.rstrip("/")


def _web_address(value: str) -> str:
    if not re.match(r"https?://[^/\s]", value):
        # The message omits the value: it may contain a secret.
        raise ValueError(
            "expected an address such as https://hooks.example/run, received something else"
        )
    return value


Cpu = Annotated[str, BeforeValidator(_cpu, json_schema_input_type=str | int | float)]
Memory = Annotated[str, BeforeValidator(_memory, json_schema_input_type=str)]
Seconds = Annotated[int, BeforeValidator(parse_seconds, json_schema_input_type=int | str)]
ResourceName = Annotated[str, AfterValidator(_resource_name)]
SecretKey = Annotated[str, AfterValidator(_secret_key)]
Variable = Annotated[str, AfterValidator(_variable)]
ObjectName = Annotated[str, AfterValidator(_object_name)]
MountPath = Annotated[str, AfterValidator(_mount_path)]
WebAddress = Annotated[str, AfterValidator(_web_address)]
BucketAddress = Annotated[str, AfterValidator(_bucket_address)]
Image = Annotated[str, AfterValidator(_image)]
