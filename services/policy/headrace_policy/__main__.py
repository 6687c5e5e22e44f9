"""The policy service's command: builds everything and wires it to the process. Knows all parts, does no work itself."""

from functools import partial

from headrace.v1 import fleet_pb2_grpc, policy_pb2_grpc, snapshot_pb2
from headrace_kit import channels, serve, settings, snapshot
from headrace_kit.serve import Host
from headrace_policy import guard_channel, redis_link
from headrace_policy.admitter import Admitter
from headrace_policy.allowance import Allowance
from headrace_policy.book import Shelf
from headrace_policy.bookkeeper import Bookkeeper
from headrace_policy.books import BookkeepingServicer
from headrace_policy.config import PolicyConfig
from headrace_policy.file_journal import FileJournal
from headrace_policy.guard import Guard
from headrace_policy.journal import Journal
from headrace_policy.jwks import Jwks
from headrace_policy.jwt_identity import Issuer
from headrace_policy.readiness import RedisHealth
from headrace_policy.redis_ledger import RedisLedger
from headrace_policy.redis_link import RedisLink
from headrace_policy.regrets import Regrets
from headrace_policy.screening.doorway import Doorway
from headrace_policy.screening.jury import Jury
from headrace_policy.servicer import Desk, PolicyServicer
from headrace_policy.sqlite_journal import SqliteJournal


async def build(config: PolicyConfig, host: Host) -> None:
    shelf, client = Shelf(), redis_link.connect(config.redis)
    link = RedisLink(client, decide_s=config.redis_decide_s)
    host.on_close(client.aclose)
    ledger = RedisLedger(link, lease_ms=round(config.lease_s * 1000))
    journal = open_journal(config)
    bookkeeper = Bookkeeper(shelf, ledger, link, journal)
    regrets = Regrets(shelf, bookkeeper)
    gateway = guard_channel.connect(config)
    if gateway is not None:
        host.on_close(gateway.close)
    jury = Jury(Guard(gateway, lambda: shelf.book.secret))
    admitter = Admitter(shelf, ledger, Allowance(), regrets, Doorway(jury))
    desk = Desk(shelf, ledger, admitter, bookkeeper, journal, jury, issuer(config, host))
    policy_pb2_grpc.add_PolicyServicer_to_server(PolicyServicer(desk), host.grpc)
    books = BookkeepingServicer(host.instance, shelf, ledger)
    fleet_pb2_grpc.add_BookkeepingServicer_to_server(books, host.grpc)

    async def close_journal() -> None:
        try:
            await bookkeeper.flush()
        finally:
            journal.close()

    host.on_close(close_journal)
    follow(config, host, shelf)
    host.tasks.start("journal", bookkeeper.flush_for_ever)
    host.tasks.start("tour", bookkeeper.tour_for_ever)
    host.tasks.start("regrets", regrets.run)
    host.tasks.start("redis", RedisHealth(host.health, link).run)


def open_journal(config: PolicyConfig) -> Journal:
    if config.journal == "file":
        return FileJournal(config.state_dir / "journal")
    return SqliteJournal(config.state_dir / "journal.sqlite")


def issuer(config: PolicyConfig, host: Host) -> Issuer | None:
    """Whose tokens are taken, if any are; keeps its keys fresh."""
    if config.jwks_url is None or config.jwt_issuer is None or config.jwt_audience is None:
        return None
    jwks = Jwks(config.jwks_url, config.state_dir / "jwks.json")
    host.tasks.start("jwks", jwks.run)
    return Issuer(config.jwt_issuer, config.jwt_audience, config.jwt_tenant_claim, jwks.find)


def follow(config: PolicyConfig, host: Host, shelf: Shelf) -> None:
    """The policy section of the snapshot; ready with the first."""
    channel = channels.connect(config.controlplane, token=host.service_token, peer="controlplane", tls=host.tls)
    host.on_close(channel.close)
    host.export_spans(channel, "controlplane")
    snapshot.follow(host, channel, snapshot_pb2.PolicySection, shelf.apply, config)


def main() -> None:
    config = settings.load(PolicyConfig, service="policy")
    serve.run("policy", config, partial(build, config))


if __name__ == "__main__":
    main()
