"""Certificates for tests: authorities, and what they sign."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from cryptography.x509.oid import NameOID

KEY_PASSWORD = "key-password-4711"


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as files in PEM; the key is locked with `KEY_PASSWORD`."""

    certificate: Path
    key: Path

    def settings(self) -> dict[str, str]:
        """Return what a client is told of them."""
        return {
            "ssl.certificate.location": str(self.certificate),
            "ssl.key.location": str(self.key),
            "ssl.key.password": KEY_PASSWORD,
        }


class Authority:
    """An authority of its own, below a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._key, self._name = ec.generate_private_key(ec.SECP256R1()), _name(folder.name)
        self.certificate = folder / "authority.pem"
        whole = x509.BasicConstraints(ca=True, path_length=None)
        made = _of(self._name, self._key, 1).issuer_name(self._name).add_extension(whole, critical=True)
        self.certificate.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def sign(self, who: str, days: int = 1, address: str | None = None) -> Pair:
        """Make a key and its certificate, good for so many days from yesterday on; with 0 it is over.

        :param address: of the server that has it, for clients that compare it.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        made = _of(_name(who), key, days).issuer_name(self._name)
        if address is not None:
            made = made.add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), False)
        certificate = made.sign(self._key, hashes.SHA256())
        pair = Pair(self._folder / f"{who}.pem", self._folder / f"{who}.key")
        pair.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
        locked = BestAvailableEncryption(KEY_PASSWORD.encode())
        pair.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked))
        return pair


def _name(who: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, who)])


def _of(who: x509.Name, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    until = now + timedelta(days=days) if days else now - timedelta(minutes=1)
    return (
        x509.CertificateBuilder()
        .subject_name(who)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(until)
    )
