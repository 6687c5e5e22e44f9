"""One platform's directory: credentials, addresses, logs, and who runs. Knows where things lie, not how they start."""

import fcntl
import json
import os
import re
import secrets
import socket
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from headrace_kit.files import write_atomically

SERVICES = ("controlplane", "policy", "router", "gateway")
GATEWAY_HTTP, GATEWAY_GRPC = "127.0.0.1:8080", "127.0.0.1:8081"
_MAX_SOCKET_PATH = 100
_ADDRESS = re.compile(r"\S+:[0-9]{1,5}")


class CommandError(Exception):
    """What the person at the terminal must know: one sentence."""


def default_path() -> Path:
    """XDG state home; the one directory whose gateway has fixed ports."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(base) / "headrace"


def weights_cache() -> Path:
    """XDG cache home: what was downloaded once serves every platform of this user."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "headrace/weights"


@dataclass(frozen=True)
class StateDir:
    """The layout; every path under ``root`` is named here."""

    root: Path

    @classmethod
    def resolve(cls, flag: str | None) -> "StateDir":
        """The flag, else HEADRACE_STATE_DIR, else the default."""
        named = os.environ.get("HEADRACE_STATE_DIR") if flag is None else flag
        if flag == "":
            raise CommandError("--state-dir is empty")
        return cls(Path(named).absolute() if named else default_path())

    @property
    def service_token(self) -> Path:
        return self.root / "service-token"

    @property
    def admin_key(self) -> Path:
        return self.root / "admin-key"

    @property
    def api_key(self) -> Path:
        return self.root / "api-key"

    @property
    def addresses(self) -> Path:
        return self.root / "addresses.json"

    @property
    def lock(self) -> Path:
        return self.root / "supervisor.lock"

    @property
    def stop_reason(self) -> Path:
        """Why the supervisor gave up, for the command that waits for it."""
        return self.root / "supervisor.error"

    @property
    def deaths(self) -> Path:
        """How often in a row each process of the supervisor has ended soon after its start."""
        return self.root / "supervisor.deaths"

    def announce(self, service: str) -> Path:
        return self.root / "announce" / f"{service}.json"

    def log(self, service: str) -> Path:
        return self.root / "logs" / f"{service}.log"

    def of(self, service: str) -> Path:
        """The state directory of one service."""
        return self.root / "services" / service

    @property
    def redis_socket(self) -> Path:
        """In the state directory, or beside it where the path would be too long for a unix socket."""
        inside = self.of("redis") / "redis.sock"
        if len(str(inside)) <= _MAX_SOCKET_PATH:
            return inside
        runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp")
        return runtime / f"headrace-redis-{os.getuid()}-{_short(self.root)}.sock"

    def prepare(self) -> None:
        """Makes the directory and the service token, both for the owner only."""
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            for folder in ("announce", "logs", "services"):
                (self.root / folder).mkdir(exist_ok=True, mode=0o700)
            self.root.chmod(0o700)
            for secret in (self.service_token, self.admin_key, self.api_key):
                if secret.exists():
                    secret.chmod(0o600)
        except OSError as error:
            raise CommandError(f"cannot make the state directory {self.root}: {error.strerror}") from None
        if not self.service_token.exists():
            write_atomically(self.service_token, secrets.token_urlsafe(32).encode())

    def announced(self, service: str) -> dict[str, Any] | None:
        """What a running service announced, or None."""
        return read_json(self.announce(service))

    def read_secret(self, path: Path) -> str:
        try:
            return path.read_text("utf-8").strip()
        except OSError:
            raise CommandError(f"nothing is running in {self.root} (start it with: headrace up)") from None

    def supervisor_pid(self) -> int | None:
        """Pid of the live supervisor, or None: its lock is what counts, for a pid may be anyone's by now."""
        try:
            with self.lock.open("r", encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except BlockingIOError:
            return int(self.lock.read_text("utf-8") or 0) or None
        return None


def _short(path: Path) -> str:
    return blake2b(str(path).encode(), digest_size=6).hexdigest()


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file that its writer replaces whole, or None while there is none."""
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    assert isinstance(content, dict), f"{path} holds no object"
    return content


def assign_addresses(state: StateDir) -> dict[str, dict[str, str]]:
    """Address of every listener, chosen once and kept, so that a restarted service is found where it was."""
    known = _read_addresses(state.addresses)
    fixed = state.root == default_path()
    for service in SERVICES:
        names = ("grpc", "http", "public_grpc", "public_http") if service == "gateway" else ("grpc", "http")
        entry = known.setdefault(service, {})
        for name in names:
            if name not in entry:
                entry[name] = _fixed(name) if fixed and name.startswith("public") else _free_address()
    write_atomically(state.addresses, json.dumps(known, indent=1).encode())
    return known


def _read_addresses(path: Path) -> dict[str, dict[str, str]]:
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except ValueError:
        content = None
    if not isinstance(content, dict) or not all(_is_entry(entry) for entry in content.values()):
        raise CommandError(f"{path} is damaged: delete it, and addresses are chosen anew")
    return content


def _is_entry(entry: object) -> bool:
    return isinstance(entry, dict) and all(isinstance(one, str) and _ADDRESS.fullmatch(one) for one in entry.values())


def _fixed(name: str) -> str:
    return GATEWAY_HTTP if name == "public_http" else GATEWAY_GRPC


def _free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
