"""Detection of new inputs: data, code or settings not yet judged."""

from __future__ import annotations

from qat_lib.support.digests import sha256_of_json
from qatline.components.registry.registry import INPUTS, PROMOTED, REJECTED, ROLLED_BACK, Registry
from qatline.components.store.fingerprints import code_digest, library_versions, settings_files
from qatline.pipelines.config.run_config import RunConfig

_JUDGED = frozenset({PROMOTED, REJECTED, ROLLED_BACK})
_NO_INPUT = frozenset({"registry", "retrain"})


def inputs_fingerprint(config: RunConfig) -> str:
    """Return a SHA-256 of all dependencies of a run's result.

    Data files are hashed; folders are represented by names, sizes and times, S3 objects by their
    tags. The fingerprint includes the sources of qatline and of the user's modules, library
    versions and settings.

    Raises:
        ConfigError: a module named in the settings cannot be found.
        DataError: a file cannot be read.
    """
    plain = {}
    for name, section in config.sections().items():
        if name not in _NO_INPUT:
            plain[name] = section.model_dump(mode="json")
    content = {
        "seed": config.seed,
        "settings": plain,
        "code": code_digest(plain),
        "files": settings_files(plain),
        "versions": library_versions(),
    }
    return sha256_of_json(content)


def judged_before(registry: Registry, fingerprint: str) -> str:
    """Return a sentence on the judged version with these inputs; empty for none."""
    for version in reversed(registry.versions()):
        if version.tags.get(INPUTS) == fingerprint and version.state in _JUDGED:
            return (
                f"version {version.number} of {registry.name} ({version.state}) came from the same "
                "data, code and settings."
            )
    return ""
