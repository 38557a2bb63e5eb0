"""Certificates for servers on loopback."""

import datetime
import ipaddress
from pathlib import Path

import pytest


def certificate(folder: Path) -> tuple[Path, Path]:
    """A key, and a certificate for 127.0.0.1 that it signed itself."""
    pytest.importorskip("cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "api")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    private = serialization.PrivateFormat.PKCS8
    no_password = serialization.NoEncryption()
    (folder / "key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, private, no_password)
    )
    (folder / "crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return folder / "key", folder / "crt"
