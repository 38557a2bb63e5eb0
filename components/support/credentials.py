"""Rejection of secrets in configs, and masking of secrets in output.

A config is stored with its run, recorded in MLflow and compiled into the pipeline. Config values
that contain secrets are therefore rejected. Messages of libraries cannot be rejected; they are
masked before they reach logs, events, the screen and the tracking store.

``mask_values`` masks by value: it replaces the values of secret environment variables and tokens of
well-known formats. Other text is unchanged, so that the function is safe for JSON, YAML and HTML.
``scrub`` is for prose: it also masks values marked as secret by an address, a header or an
assignment.
"""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from qat_lib.errors import ConfigError

S3_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "MLFLOW_S3_ENDPOINT_URL")
"""Environment variables with the address of an object store."""

_MASK = "***"
_SHORTEST_WORD = 8  # characters; shorter words and numbers occur by chance
_SHORTEST_MIXED = 5  # characters of a value with letters and digits or symbols
_LONGEST_WORD = 15  # characters; a longer sequence of letters is random
_SECRET_NAME = re.compile(
    r"(?:passw(?:or)?d|passphrase|pwd|(?:^|_)pass|secret|token|signature|credentials?|jwt|bearer"
    r"|session_?id|cookie|_webhook(?:_url)?"
    r"|(?:api|access|account|private|secret|encryption|signing)_?key(?:_?id)?)$"
)
_MODEL_TOKEN = re.compile(
    r"(?:cls|class|mask|pad|sep|bos|eos|unk|dist|distillation|register)_?token$"
)
_QUERY_NAMES = frozenset({"sig", "key", "auth", "authorization", "pass", "pw"})
# Bounded: every letter of a long word is a possible start, which takes quadratic time otherwise.
_SCHEME = re.compile(r"([a-zA-Z][\w+.-]{0,31})://")
_DATABASES = ("postgres", "mysql", "mariadb", "mssql", "oracle", "sqlite")

# A password may contain any character: everything between "user:" and the last @ of a word counts
# as one. Paths made from URLs have lost one slash.
_USERINFO = re.compile(
    r"(?:(?<=://)|(?<=http:/)|(?<=https:/))(?:[^\s/?#@:]{0,256}:\S{0,512}|[^\s/?#@]{0,512})@"
)
_PASSWORD = re.compile(r"[a-zA-Z][\w+.-]{0,31}://[^\s/?#@:]{0,256}:([^\s/?#@]{1,512})@")
# "name=value", "name: value" and "'name': 'value'". Names after a slash are file names.
_NAME = re.compile(r"(?<![\w./-])([\w.-]{1,64})\\?['\"]?[ \t]{0,3}(?:=(?!=)|:(?!/))[ \t]{0,3}")
# Excluded: words of qatline's messages, and references to Kubernetes secrets (mlflow/password).
_VALUE = re.compile(
    r"(?P<quote>\\?['\"])[^'\"\n]*(?P=quote)|(?!expected\b|[a-z.-]+/[a-z.-]+(?![\w/]))[^\s&;,'\"#()\[\]{}<>]+"
)
_HEADER = re.compile(
    r"\b(authorization['\"]?\s?[:=]\s?['\"]?(?:[A-Za-z]+\s+)?|(?:bearer|basic)\s+)[\w.~+/=-]{8,}",
    re.IGNORECASE,
)
_KNOWN_FORMAT = re.compile(
    r"\b(?:gh[opsur]_\w{30,}|github_pat_\w{30,}|glpat-[\w-]{20,}|hf_\w{30,}|xox[abp]-[\w-]{20,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}\b|sk[-_](?=[\w-]{0,40}\d)[\w-]{20,}|AIza[\w-]{35}"
    r"|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+)"
    # Webhook addresses are secrets: they need no further credentials.
    r"|https?://(?:[\w.-]{1,200}\.)?(?:slack\.com/services/|discord(?:app)?\.com/api/webhooks/"
    r"|webhook\.office\.com/|chat\.googleapis\.com/)[^\s'\"<>]+"
    r"|-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----[^-]*"
)


def mask_values(text: str, environment: Mapping[str, str] | None = None) -> str:
    """Return ``text`` with secret values and tokens of well-known formats replaced by ``***``.

    Secret values are those of environment variables with a secret name, such as ``DB_PASS``, and
    the passwords in addresses of other variables. Their percent-encoded and escaped forms are
    masked as well. Values shorter than 5 characters, and plain words or numbers shorter than 8, are
    not masked. Plain words are masked only as whole words: ``postgres`` is not masked in
    ``postgresql``.

    Args:
        text: text to display or write.
        environment: the variables; default: ``os.environ``.
    """
    for value in _secret_forms(os.environ if environment is None else environment):
        if len(value) >= _SHORTEST_WORD and not _is_word(value):
            text = text.replace(value, _MASK)
        elif value in text:
            text = re.sub(rf"(?<![\w./-]){re.escape(value)}(?![\w/-])", _MASK, text)
    return _KNOWN_FORMAT.sub(_MASK, text)


def scrub(text: str, environment: Mapping[str, str] | None = None) -> str:
    """Return prose with every secret replaced by ``***``.

    In addition to ``mask_values``, it masks user and password of a URI, authorization headers, and
    parameters and fields with a secret name.

    Args:
        text: text to display, log or record.
        environment: the variables; default: ``os.environ``.
    """
    text = mask_values(text, environment)
    text = _USERINFO.sub(f"{_MASK}@", text)
    text = _HEADER.sub(rf"\1{_MASK}", text)
    return _mask_named(text)


def secret_problem(name: str, value: Any) -> str | None:
    """Return a message on the secret in a config value and its proper place, or None.

    Args:
        name: last part of the value's path; ``password`` makes any text a secret.
        value: a value of the config; only text can be secret.
    """
    if not isinstance(value, str) or not value:
        return None
    found = _secret_in(value)
    if found is not None:
        return f"expected an address without credentials, received {found}. {_advice(value, name)}"
    assigned = _HEADER.search(value) or _mask_named(value) != value
    if (
        is_secret_name(name)
        or _KNOWN_FORMAT.search(value)
        or assigned
        or _holds_secret_value(value)
    ):
        return f"expected no secret, received one. {_advice(value, name)}"
    return None


def check_address(uri: str, name: str) -> None:
    """Check that an address contains no credentials.

    Args:
        uri: the address.
        name: option, config key or environment variable, for the message.

    Raises:
        ConfigError: it contains credentials; the message shows neither them nor the address.
    """
    found = _secret_in(uri)
    if found is not None:
        raise ConfigError(
            f"{name}: expected an address without credentials, received {found}. "
            f"{_advice(uri, name)}"
        )


def check_variables(*names: str) -> None:
    """Check that the addresses in environment variables contain no credentials.

    Raises:
        ConfigError: an address contains credentials.
    """
    for name in names:
        check_address(os.environ.get(name, ""), name)


def is_secret_name(name: str) -> bool:
    """Return whether a name marks its value as secret.

    Examples are ``api_key`` and ``X-Amz-Signature``, but not ``class_token``.
    """
    plain = name.lower().replace("-", "_")
    return bool(_SECRET_NAME.search(plain)) and not _MODEL_TOKEN.search(plain)


def _secret_in(text: str) -> str | None:
    """Return a description of the secret in an address, or None."""
    for match in _SCHEME.finditer(text):
        scheme, rest = match[1].lower(), text[match.end() :]
        if _has_credentials(scheme, rest):
            return "one with a user name or password"
    for name in _query_names(text):
        return f"one with the parameter {name}"
    return None


def _has_credentials(scheme: str, rest: str) -> bool:
    authority = re.split(r"[/?#\s]", rest, maxsplit=1)[0]
    if "@" in authority:
        # Databases accept passwords from other sources, but user names only from the address.
        return ":" in authority.rpartition("@")[0] or not scheme.startswith(_DATABASES)
    # A password without percent-encoding may contain characters that end an authority.
    return ":" in authority and "@" in rest


def _query_names(text: str) -> Iterator[str]:
    if "://" not in text:
        return
    for match in re.finditer(r"[?&;#]([\w.-]{1,64})=[^&\s]", text):
        if is_secret_name(match[1]) or match[1].lower() in _QUERY_NAMES:
            yield match[1]


def _advice(uri: str, name: str) -> str:
    scheme = match[1].lower() if (match := _SCHEME.search(uri)) else ""
    if name in ("--host", "KFP_ENDPOINT"):
        return "Give a bearer token as KFP_TOKEN."
    if name in S3_ENDPOINT_VARIABLES or scheme == "s3":
        return "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (on a cluster: cluster.secret_env)."
    if scheme.startswith("postgres"):
        return "Keep the user name, and give the password as PGPASSWORD or in ~/.pgpass."
    if scheme.startswith(("mysql", "mariadb")):
        return "Keep the user name, and name a file with the password: ?read_default_file=/path/my.cnf."
    if scheme.startswith("http") and name.lower().endswith("uri"):
        return (
            "Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
            "MLFLOW_TRACKING_TOKEN, in the environment (on a cluster: cluster.secret_env)."
        )
    variable = "QATLINE_WEBHOOK" if name == "webhook" else re.sub(r"\W", "_", name).upper()
    return (
        "A config is stored with its run and recorded in MLflow. Set an environment variable and "
        "let the code that needs the secret read it. On a cluster, name a Kubernetes secret and "
        f"its key instead: cluster.secret_env={{{variable}: secret-name/key}}."
    )


def _holds_secret_value(text: str) -> bool:
    """Return whether a text is or contains a secret of the environment.

    Plain words such as ``postgres``, a common development password, may be part of a text by
    chance.
    """
    forms = _secret_forms(os.environ)
    return any(text == form or (form in text and not _is_word(form)) for form in forms)


def _secret_forms(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secrets of variables in all forms they may have in a text, longest first."""
    # A process scrubs thousands of lines in one environment.
    return _forms_of(tuple(environment.items()))


@lru_cache(maxsize=4)
def _forms_of(variables: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    forms: set[str] = set()
    for value in _secret_values(variables):
        encoded = {quote(value, safe=""), quote(value), quote_plus(value)}
        lower = {re.sub(r"%..", lambda code: code[0].lower(), text) for text in encoded}
        escaped = {json.dumps(value)[1:-1], repr(value)[1:-1], html.escape(value)}
        forms |= {value, unquote(value), *encoded, *lower, *escaped}
    return tuple(sorted(filter(_can_be_masked, forms), key=len, reverse=True))


def _secret_values(variables: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the values of variables with a secret name and the passwords of addresses."""
    for name, value in variables:
        if is_secret_name(name):
            if not _is_file(value):  # such as GOOGLE_APPLICATION_CREDENTIALS
                yield value
        elif (address := _PASSWORD.match(value)) is not None:
            yield address[1]


def _is_file(value: str) -> bool:
    return value.startswith(("/", ".", "~")) and os.path.exists(os.path.expanduser(value))


def _can_be_masked(value: str) -> bool:
    """Return whether a value is unlikely to occur in a text by chance."""
    plain = value.isalpha() or value.isdigit()
    return len(value) >= (_SHORTEST_WORD if plain else _SHORTEST_MIXED)


def _is_word(value: str) -> bool:
    return value.isalpha() and len(value) <= _LONGEST_WORD


def _mask_named(text: str) -> str:
    """Mask the values that a text assigns to secret names."""
    parts, end = [], 0
    for match in _NAME.finditer(text):
        before = text[match.start() - 1 : match.start()]
        in_query = before in ("?", "&", ";", "#") and match[1].lower() in _QUERY_NAMES
        if match.start() < end or not (in_query or is_secret_name(match[1])):
            continue
        if value := _VALUE.match(text, match.end()):
            quotes = value["quote"] or ""
            parts += [text[end : match.end()], quotes, _MASK, quotes]
            end = value.end()
    return "".join(parts) + text[end:]
