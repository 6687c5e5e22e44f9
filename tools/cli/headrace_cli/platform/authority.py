"""A private certificate authority: one key that signs the certificates of our services. Knows no deployment.

RFC 5280 certificates with ECDSA P-256 keys. A service proves who it is, not where it runs: see channels.identity.
"""

import datetime
import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS = 3650
_CLOCK_SKEW = datetime.timedelta(minutes=5)
_HOST = re.compile(
    r"(\*\.)?([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.IGNORECASE
)


class BadName(ValueError):
    """A host name or address that no certificate can carry."""


@dataclass(frozen=True)
class Pem:
    """A certificate and its key, both PEM."""

    cert: bytes
    key: bytes


@dataclass(frozen=True)
class Order:
    """A certificate to be signed: its names (host names or addresses, the first is shown), and what it may prove."""

    names: Sequence[str]
    days: int
    client: bool = False
    """Whether it may also be shown to our listeners, as a peer."""


class Authority:
    """Signs; ``pem`` is what its owner keeps. Only ``pem.cert`` is for others."""

    def __init__(self, pem: Pem) -> None:
        """Raises ValueError for what is no certificate and key of an authority."""
        self.pem = pem
        self._cert = x509.load_pem_x509_certificate(pem.cert)
        key = load_pem_private_key(pem.key, password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != self._cert.public_key():
            raise ValueError("the authority's key does not belong to its certificate")
        self._key = key

    @classmethod
    def create(cls, now: datetime.datetime) -> "Authority":
        """A new one, valid for ten years; it may sign certificates but no further authorities."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Headrace private authority")])
        builder = _builder(name, name, key, now, AUTHORITY_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        cert = builder.sign(key, hashes.SHA256())
        return cls(Pem(cert.public_bytes(Encoding.PEM), _key_bytes(key)))

    def signed(self, cert: bytes) -> bool:
        """Whether a PEM certificate is one of ours; what is no certificate is not."""
        try:
            x509.load_pem_x509_certificate(cert).verify_directly_issued_by(self._cert)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True

    def issue(self, order: Order, now: datetime.datetime) -> Pem:
        """A fresh key and its certificate. Raises BadName."""
        names = general_names(order.names)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, order.names[0][:64])])
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH, *([ExtendedKeyUsageOID.CLIENT_AUTH] if order.client else [])]
        issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            _builder(subject, self._cert.subject, key, now, order.days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(issuer_id, critical=False)
        )
        return Pem(builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM), _key_bytes(key))


def general_names(names: Iterable[str]) -> list[x509.GeneralName]:
    """DNS names and IP addresses as a certificate carries them; raises BadName naming the one that is neither."""
    found: list[x509.GeneralName] = []
    for name in names:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            if len(name) > 253 or not _HOST.fullmatch(name):
                raise BadName(f"{name!r} is neither a host name nor an IP address") from None
            found.append(x509.DNSName(name.lower()))
    return found


def names_in(cert: bytes) -> list[str]:
    """Host names and addresses of a PEM certificate of ours."""
    found = x509.load_pem_x509_certificate(cert).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return [str(name.value) for name in found.value]


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


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


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
