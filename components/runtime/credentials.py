"""What a secret looks like, in one place.

Which texts are refused, and what is masked where text leaves qatline.

A config is stored with its run, recorded in MLflow and compiled into the pipeline, so no secret may
be in it: a value that holds one is refused where it enters. What libraries say in their messages
can't be refused; ``scrub`` masks it on its way to logs, events, the screen and the tracking store.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from qat_lib.errors import ConfigError

S3_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "MLFLOW_S3_ENDPOINT_URL")
"""Environment variables that hold the address of an object store."""

_MASK = "***"
_SHORTEST = 8  # characters; shorter values hit words that mean something else
_SHORTEST_WORD = 5  # characters of one that is no plain word, and stands alone
_SECRET_NAME = re.compile(
    r"(?:passw(?:or)?d|passphrase|pwd|secret|token|signature|credentials?|jwt|bearer|session_?id"
    r"|(?:api|access|account|private|secret)_?key(?:_?id)?)$"
)
_MODEL_TOKEN = re.compile(
    r"(?:cls|class|mask|pad|sep|bos|eos|unk|dist|distillation|register)_?token$"
)
_QUERY_NAMES = frozenset({"sig", "key", "auth", "authorization", "pass", "pw"})
# Bounded: each letter of a long word is a start.
_SCHEME = re.compile(r"([a-zA-Z][\w+.-]{0,31})://")
_DATABASES = ("postgres", "mysql", "mariadb", "mssql", "oracle", "sqlite")

# A password may hold any character: what follows "user:" up to the last @ of a word is taken for
# one. A path that was made of a URL has lost one slash.
_USERINFO = re.compile(
    r"(?:(?<=://)|(?<=http:/)|(?<=https:/))(?:[^\s/?#@:]{0,256}:\S{0,512}|[^\s/?#@]{0,512})@"
)
_PASSWORD = re.compile(r"[a-zA-Z][\w+.-]{0,31}://[^\s/?#@:]{0,256}:([^\s/?#@]{1,512})@")
_ASSIGNED = re.compile(
    r"(?<![\w.-])([\w.-]{1,64})=('[^'\n]*'|\"[^\"\n]*\"|[^\s&;,'\"#()\[\]{}<>]+)"
)
_QUOTED = re.compile(r"(['\"])([\w.-]{1,64})\1\s?:\s?(['\"])([^'\"\n]+)\3")
_HEADER = re.compile(
    r"\b((?:authorization\W{1,5})?(?:bearer|basic))\s+[\w.~+/=-]{8,}", re.IGNORECASE
)
_KNOWN_FORMAT = re.compile(
    r"\b(?:gh[opsur]_\w{30,}|github_pat_\w{30,}|glpat-[\w-]{20,}|hf_\w{30,}|xox[abp]-[\w-]{20,}"
    r"|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+)"
    r"|-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----[^-]*"
)


def scrub(text: str, environment: Mapping[str, str] | None = None) -> str:
    """Return ``text`` with every secret in it replaced by ``***``.

    Masked are user and password of a URI, parameters and fields whose name says that they are
    secret, tokens of well-known forms, and the values of secret environment variables.

    Args:
        text: What is about to be shown, logged or recorded.
        environment: Where secret variables are; default: ``os.environ``.
    """
    for value in _secret_values(os.environ if environment is None else environment):
        if len(value) >= _SHORTEST:
            text = text.replace(value, _MASK)
        elif value in text:
            text = re.sub(rf"(?<![\w./-]){re.escape(value)}(?![\w/-])", _MASK, text)
    text = _USERINFO.sub(f"{_MASK}@", text)
    text = _HEADER.sub(rf"\1 {_MASK}", text)
    text = _KNOWN_FORMAT.sub(_MASK, text)
    text = _ASSIGNED.sub(_masked_assignment, text)
    return _QUOTED.sub(_masked_field, text)


def secret_problem(name: str, value: Any) -> str | None:
    """Return which secret a config value holds and where it belongs.

    None if it holds none.

    Args:
        name: Last part of the value's path; ``password`` makes a secret of any text.
        value: A value of the config; what is no text is no secret.
    """
    if not isinstance(value, str) or not value:
        return None
    found = _secret_in(value)
    if found is not None:
        return f"expected an address without credentials, received {found}. {_advice(value, name)}"
    if is_secret_name(name) or value in _secret_values(os.environ) or _KNOWN_FORMAT.search(value):
        return f"expected no secret, received one. {_ELSEWHERE}"
    return None


def check_address(uri: str, name: str) -> None:
    """Check that an address holds no credentials.

    Args:
        uri: The address.
        name: What the user calls it: an option, a config key or an environment variable.

    Raises:
        ConfigError: It holds some; the message shows neither them nor the address.
    """
    found = _secret_in(uri)
    if found is not None:
        raise ConfigError(
            f"{name}: expected an address without credentials, received {found}. "
            f"{_advice(uri, name)}"
        )


def check_variables(*names: str) -> None:
    """Check that the addresses in environment variables hold no credentials.

    Raises:
        ConfigError: One does.
    """
    for name in names:
        check_address(os.environ.get(name, ""), name)


def is_secret_name(name: str) -> bool:
    """Whether a name says that its value is secret.

    ``api_key``, ``X-Amz-Signature``, but not ``class_token``.
    """
    plain = name.lower().replace("-", "_")
    return bool(_SECRET_NAME.search(plain)) and not _MODEL_TOKEN.search(plain)


def _secret_in(text: str) -> str | None:
    """Return, in words, which secret an address in ``text`` holds."""
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
        # A database takes its password from elsewhere, the name of its user only from here.
        return ":" in authority.rpartition("@")[0] or not scheme.startswith(_DATABASES)
    # A password that is not percent-encoded may hold the characters that end an authority.
    return ":" in authority and "@" in rest


def _query_names(text: str) -> Iterator[str]:
    if "://" not in text:
        return
    for match in re.finditer(r"[?&;#]([\w.-]{1,64})=[^&\s]", text):
        if is_secret_name(match[1]) or match[1].lower() in _QUERY_NAMES:
            yield match[1]


_ELSEWHERE = (
    "A config is stored with its run and recorded in MLflow. Set an environment variable and let "
    "the code that needs the secret read it (on a cluster: cluster.secret_env)."
)


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
    return _ELSEWHERE


def _secret_values(environment: Mapping[str, str]) -> list[str]:
    """Return the secrets in variables, longest first.

    They are the values of variables whose names say so, and the passwords of addresses. A path to a
    secret is none.
    """
    found = set()
    for name, value in environment.items():
        if is_secret_name(name) and not value.startswith(("/", ".", "~")):
            found.add(value)
        elif (address := _PASSWORD.match(value)) is not None:
            found.add(address[1])
    return sorted(filter(_can_be_masked, found), key=len, reverse=True)


def _can_be_masked(value: str) -> bool:
    """Whether a value is no word that a text may hold by chance."""
    if len(value) >= _SHORTEST:
        return True
    return len(value) >= _SHORTEST_WORD and not value.isalpha() and not value.isdigit()


def _masked_assignment(match: re.Match[str]) -> str:
    before = match.string[match.start() - 1 : match.start()]
    in_query = before in ("?", "&", ";", "#") and match[1].lower() in _QUERY_NAMES
    return f"{match[1]}={_MASK}" if in_query or is_secret_name(match[1]) else match[0]


def _masked_field(match: re.Match[str]) -> str:
    quote, name, value_quote, _ = match.groups()
    return (
        f"{quote}{name}{quote}: {value_quote}{_MASK}{value_quote}"
        if is_secret_name(name)
        else match[0]
    )
