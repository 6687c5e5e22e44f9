"""The router's command: builds everything and wires it to the process. Knows all parts and does no work itself."""

import random
from functools import partial

import grpc

from headrace.v1 import fleet_pb2_grpc, routing_pb2_grpc, snapshot_pb2
from headrace_kit import channels, serve, settings, snapshot
from headrace_kit.serve import Host
from headrace_router import redis_link
from headrace_router.books import BookkeepingServicer
from headrace_router.config import RouterConfig
from headrace_router.decisions import DecisionLog
from headrace_router.demand import Demand
from headrace_router.dispatcher import Dispatcher
from headrace_router.fleet_rules import FleetRules
from headrace_router.gateway_watch import GatewayWatch
from headrace_router.gauges import Gauges
from headrace_router.in_flight import InFlight
from headrace_router.index_keeper import keepers
from headrace_router.pool_loads import pool_loads
from headrace_router.prefix_index import NoIndex, PrefixIndex
from headrace_router.redis_index import RedisIndex
from headrace_router.redis_pages import RedisPages
from headrace_router.replicas import ReplicaTable
from headrace_router.reporting import DemandReporter, ModelHealth
from headrace_router.roster import Roster
from headrace_router.servicer import RouterServicer
from headrace_router.watcher import Credentials, watchers


async def build(config: RouterConfig, host: Host) -> None:
    rules, in_flight, demand = FleetRules(), InFlight(), Demand()
    table = ReplicaTable(rules, in_flight)
    Gauges(rules, table, demand).register()
    credentials = Credentials(host.instance, host.service_token, host.tls)
    dispatcher = Dispatcher(
        rules, table, demand, prefix_index(config, host, table, credentials), random.Random(config.seed)
    )
    servicer = RouterServicer(rules, table, in_flight, dispatcher, demand, DecisionLog(config.num_explained))
    routing_pb2_grpc.add_RouterServicer_to_server(servicer, host.grpc)
    channel = channels.connect(config.controlplane, token=host.service_token, peer="controlplane", tls=host.tls)
    fleet_pb2_grpc.add_BookkeepingServicer_to_server(BookkeepingServicer(host.instance, in_flight), host.grpc)
    host.on_close(channel.close)
    host.export_spans(channel, "controlplane")
    follow(config, host, channel, rules, table)
    host.tasks.start("watchers", watchers(table, credentials).run)
    reporter = DemandReporter(demand, channel, host.instance, lambda: pool_loads(table))
    host.tasks.start("demand", reporter.run)
    host.tasks.start("gateways", GatewayWatch(in_flight, table, channel, servicer.settle).run)

    async def drain() -> None:
        dispatcher.draining = True

    host.on_drain(drain)


def prefix_index(config: RouterConfig, host: Host, table: ReplicaTable, credentials: Credentials) -> PrefixIndex:
    """The index in Redis, and the keepers of those replicas whose lease this router gets; none without Redis."""
    if config.redis is None:
        return NoIndex()
    client = redis_link.connect(config.redis)
    host.on_close(client.aclose)
    host.tasks.start("prefixes", keepers(table, RedisPages(client, host.instance), credentials).run)
    return RedisIndex(client)


def follow(config: RouterConfig, host: Host, channel: grpc.aio.Channel, rules: FleetRules, table: ReplicaTable) -> None:
    """Snapshot, list of replicas and the replicas themselves; ready with the first snapshot and list."""
    snapshot.follow(host, channel, snapshot_pb2.RouterSection, rules.apply, config)
    roster = Roster(table, channel, host.instance, config.state_dir)
    host.health.add("replicas")

    async def first_list() -> None:
        await roster.known.wait()
        host.health.serving("replicas")

    host.tasks.start("roster", roster.run)
    host.tasks.start("first_list", first_list)
    host.tasks.start("model_health", ModelHealth(host.health, rules, table).run)


def main() -> None:
    config = settings.load(RouterConfig, service="router")
    serve.run("router", config, partial(build, config))


if __name__ == "__main__":
    main()
