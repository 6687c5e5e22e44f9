"""The directory of one deployment's certificates and secrets: which files there are, and who may read them.

ca.pem  ca-key.pem                    the authority; its key leaves this directory for nobody
SERVICE.pem  SERVICE-key.pem          what a service shows its peers
public.pem  public-key.pem            what the gateway shows clients; may be replaced by a certificate of any authority
service-token  redis.conf  policy.toml   (for containers) the token of decision 21, and Redis with its password
"""

import datetime
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace_cli.platform.authority import Authority, Order, Pem, names_in
from headrace_cli.platform.state_dir import CommandError
from headrace_kit.channels import identity
from headrace_kit.files import write_atomically

SERVICES = ("gateway", "policy", "router", "controlplane", "worker")
_REDIS = """\
bind * -::*
protected-mode yes
requirepass {password}
appendonly yes
appendfsync everysec
maxmemory-policy noeviction
save ""
dir /data
"""


@dataclass(frozen=True)
class CredentialsDir:
    """``for_containers``: others may read the files, for a container's user is no user of this host; only the owner
    may enter the directory, so nobody else on this host can.
    """

    root: Path
    for_containers: bool = False

    def renew(self, public_names: Sequence[str], days: int, now: datetime.datetime) -> Iterator[str]:
        """Makes what is missing and signs all services anew; yields a line for each thing done.

        The authority and the secrets stay. A public certificate that another authority signed stays, too.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)
        authority = self._authority(now)
        if authority is None:
            authority = Authority.create(now)
            self._write_pair("ca", authority.pem, secret=True)
            yield f"made a private authority: {self.root / 'ca.pem'}"
        for service in SERVICES:
            self._write_pair(service, authority.issue(Order([identity(service)], days, client=True), now))
        yield f"signed {', '.join(SERVICES)} for {days} days"
        yield self._renew_public(authority, public_names, days, now)
        if self.for_containers and self._write_secrets():
            yield "made the service token and the password of Redis"

    def _authority(self, now: datetime.datetime) -> Authority | None:
        cert, key = self.root / "ca.pem", self.root / "ca-key.pem"
        if not cert.exists() and not key.exists():
            return None
        try:
            return Authority(Pem(cert.read_bytes(), key.read_bytes()))
        except (OSError, ValueError) as error:
            raise CommandError(f"cannot sign with the authority in {self.root}: {error}") from error

    def _renew_public(self, authority: Authority, names: Sequence[str], days: int, now: datetime.datetime) -> str:
        """New names are added to those that it has."""
        path = self.root / "public.pem"
        old = path.read_bytes() if path.exists() else b""
        if old and not authority.signed(old):
            return f"kept {path}, which another authority signed"
        names = list(dict.fromkeys([*(names_in(old) if old else ()), *names]))
        self._write_pair("public", authority.issue(Order(names, days), now))
        return f"signed the public certificate for {', '.join(names)}"

    def _write_pair(self, name: str, pem: Pem, *, secret: bool = False) -> None:
        self._write(f"{name}-key.pem", pem.key, secret=secret)
        self._write(f"{name}.pem", pem.cert)

    def _write_secrets(self) -> bool:
        """Whether there were none. A secret that changed under a running deployment would stop it."""
        if (self.root / "service-token").exists():
            return False
        password = secrets.token_urlsafe(32)
        self._write("redis.conf", _REDIS.format(password=password).encode())
        self._write("policy.toml", f'redis = "redis://:{password}@redis:6379"\n'.encode())
        self._write("service-token", f"{secrets.token_urlsafe(32)}\n".encode())
        return True

    def _write(self, name: str, data: bytes, *, secret: bool = False) -> None:
        path = self.root / name
        write_atomically(path, data, mode=0o600)
        if self.for_containers and not secret:
            os.chmod(path, 0o644)
