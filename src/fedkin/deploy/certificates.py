"""X.509 certificates and keys on the curve P-384, made with the package cryptography (a part of the extra)."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_SKEW = timedelta(days=1)  # the clocks of two hosts may differ


def authority(days: float) -> tuple[bytes, bytes]:
    """Return the certificate (PEM) and key of a new authority, which may sign servers but no further authorities."""
    key = ec.generate_private_key(ec.SECP384R1())
    name = _named("fedkin authority")
    made = (
        _started(name, name, key.public_key(), timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    return made.public_bytes(Encoding.PEM), _secret(key)


def server(ca: bytes, ca_key: bytes, hosts: Sequence[str], days: float) -> tuple[bytes, bytes, datetime]:
    """Return a server's certificate (PEM) for the given names and addresses, its key, and its expiry date.

    The certificate does not outlive the authority's certificate.

    Raises:
        ValueError: ``ca`` or ``ca_key`` cannot be read, or they do not belong together.
    """
    signer, issuer = load_pem_private_key(ca_key, password=None), x509.load_pem_x509_certificate(ca)
    if not isinstance(signer, ec.EllipticCurvePrivateKey) or signer.public_key() != issuer.public_key():
        raise ValueError("the authority's key does not belong to its certificate")
    key = ec.generate_private_key(ec.SECP384R1())
    span = min(timedelta(days=days), issuer.not_valid_after_utc - datetime.now(UTC))
    made = (
        _started(_named(hosts[0][:64]), issuer.subject, key.public_key(), span)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA384())
    )
    return made.public_bytes(Encoding.PEM), _secret(key), made.not_valid_after_utc


def pair() -> tuple[bytes, bytes]:
    """Return a new private and public key in OpenSSH's format, which Flower requires of nodes."""
    key = ec.generate_private_key(ec.SECP384R1())
    shown = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), shown


def until(certificate: bytes) -> datetime:
    """Return the expiry date of a certificate (PEM). Raises ValueError if it cannot be read."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def _started(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, span: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC).replace(microsecond=0)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(min(now, now + span) - _SKEW).not_valid_after(now + span)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _secret(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
