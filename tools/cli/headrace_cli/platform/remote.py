"""A control plane that `headrace up` did not start: compose's, Kubernetes', or another host's.

A state directory with a ``remote.toml`` stands for it; the file's keys are the fields of ``Remote``.
"""

from dataclasses import dataclass, field
from pathlib import Path

from headrace_cli.platform.state_dir import CommandError
from headrace_kit import settings
from headrace_kit.channels import Tls

FILE = "remote.toml"


@dataclass(frozen=True, kw_only=True)
class Remote:
    """Where the control plane answers, and with what it lets us in."""

    controlplane: str = field(metadata={"help": "gRPC target of the control plane"})
    service_token_file: Path = field(metadata={"help": "file with the service token"})
    admin_key_file: Path = field(metadata={"help": "file with the admin key"})
    tls_ca: Path | None = field(default=None, metadata={"help": "authority of mutual TLS; none: no TLS"})
    tls_cert: Path = field(default=Path("cert.pem"), metadata={"help": "certificate to show"})
    tls_key: Path = field(default=Path("key.pem"), metadata={"help": "key of the certificate"})

    @property
    def tls(self) -> Tls | None:
        return None if self.tls_ca is None else Tls(self.tls_ca, self.tls_cert, self.tls_key)


def find(root: Path) -> Remote | None:
    """What the directory stands for, if it is a remote one; raises CommandError naming what is wrong with its file."""
    path = root / FILE
    if not path.exists():
        return None
    try:
        return settings.resolve(Remote, service="cli", argv=[f"--config={path}"], environ={})
    except settings.SettingsError as error:
        raise CommandError(str(error)) from error
