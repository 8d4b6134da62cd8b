"""Certificates for the tests, made by `openssl`: an authority, and what it signs."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

_CONFIGURATION = """
[ca]
default_ca = own
[own]
new_certs_dir = {folder}
database = {folder}/{name}.index
rand_serial = yes
certificate = {folder}/{name}.pem
private_key = {folder}/{name}.key
default_md = sha256
policy = any
unique_subject = no
[any]
commonName = supplied
"""
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
_LONG_AGO = ("-startdate", "20200101000000Z", "-enddate", "20200102000000Z")


@dataclass(frozen=True)
class Identity:
    """A certificate and its key, each in a file, and both in one."""

    certificate: Path
    key: Path
    both: Path


class Authority:
    """Signs certificates; its own is `certificate`."""

    def __init__(self, folder: Path, name: str = "ca"):
        self._folder, self._name = folder, name
        self.certificate = folder / f"{name}.pem"
        (folder / f"{name}.index").touch()
        self._configuration = folder / f"{name}.conf"
        self._configuration.write_text(_CONFIGURATION.format(folder=folder, name=name))
        _openssl(
            "req", "-x509", "-nodes", *_KEY, "-keyout", str(folder / f"{name}.key"),
            "-out", str(self.certificate), "-days", "10", "-subj", f"/CN={name}",
        )  # fmt: skip

    def sign(self, name: str, names: str = "IP:127.0.0.1", *, expired: bool = False) -> Identity:
        """A certificate of CN=`name` for these subject alternative names."""
        key, request, extensions, certificate, both = (
            self._folder / f"{name}.{kind}" for kind in ("key", "csr", "ext", "pem", "both")
        )
        extensions.write_text(f"subjectAltName={names}\n")
        _openssl(
            "req", "-new", "-nodes", *_KEY, "-keyout", str(key), "-out", str(request),
            "-subj", f"/CN={name}",
        )  # fmt: skip
        _openssl(
            "ca", "-batch", "-notext", "-config", str(self._configuration), "-in", str(request),
            "-out", str(certificate), "-extfile", str(extensions),
            *(_LONG_AGO if expired else ("-days", "10")),
        )  # fmt: skip
        both.write_text(key.read_text() + certificate.read_text())
        return Identity(certificate, key, both)


def locked(key: Path, password: str) -> Path:
    """The same key, encrypted."""
    to = key.with_suffix(".locked")
    _openssl("pkcs8", "-topk8", "-in", str(key), "-out", str(to), "-passout", f"pass:{password}")
    return to


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
