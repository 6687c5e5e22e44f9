"""The gateway's command: builds everything and wires it to the process. Knows all parts and does no work itself."""

import asyncio
from functools import partial

import uvloop

from headrace.v1 import fleet_pb2_grpc, inference_pb2_grpc, snapshot_pb2, worker_pb2
from headrace_gateway.books import BookkeepingServicer, Books
from headrace_gateway.buffers import Buffers
from headrace_gateway.catalog import Catalog
from headrace_gateway.config import GatewayConfig
from headrace_gateway.front import Front
from headrace_gateway.http.app import build_app
from headrace_gateway.http.protocol import BoundedProtocol
from headrace_gateway.instruments import Instruments
from headrace_gateway.orphans import OrphanSettler
from headrace_gateway.outbox import Outbox
from headrace_gateway.pace import Pace
from headrace_gateway.prepare import Preparer
from headrace_gateway.renewals import Renewals
from headrace_gateway.servicer import InferenceServicer
from headrace_gateway.services import Services
from headrace_gateway.sessions import Sessions
from headrace_gateway.settler import Settler
from headrace_gateway.trace_draw import TraceDraw
from headrace_gateway.upstreams.policy import PolicyClient
from headrace_gateway.upstreams.router import RouterClient
from headrace_gateway.upstreams.screen import ScreenClient
from headrace_gateway.upstreams.worker_pool import Peer, WorkerPool
from headrace_kit import serve, settings, snapshot
from headrace_kit.channels import KeyPair, connect
from headrace_kit.serve import Host

HTTP_IDLE_S = 75


async def build(config: GatewayConfig, host: Host) -> None:
    targets = {"controlplane": config.controlplane, "policy": config.policy, "router": config.router}
    controlplane, policy_channel, router_channel = (
        connect(target, token=host.service_token, peer=peer, tls=host.tls) for peer, target in targets.items()
    )
    catalog = Catalog(controlplane, config.state_dir / "cards")
    instruments = Instruments(TraceDraw(config.trace_share, config.trace_per_s))

    def apply(section: snapshot_pb2.GatewaySection) -> None:
        catalog.apply(section)
        instruments.apply(section)

    policy, router = PolicyClient(policy_channel), RouterClient(router_channel, host.instance)
    outbox = Outbox(config.state_dir / "outbox.sqlite")
    settler = Settler(policy, outbox)
    peer = Peer(worker_pb2.Hello(gateway_id=host.instance, gateway_epoch=host.instance), host.service_token, host.tls)
    workers = WorkerPool(peer, config.frame_timeout_s, OrphanSettler(settler, router, host.instance).take)
    sessions, renewals = Sessions(), Renewals(policy, host.instance)
    services = Services(
        gateway_id=host.instance,
        snapshot=snapshot.follow(host, controlplane, snapshot_pb2.GatewaySection, apply, config),
        policy=policy,
        router=router,
        workers=workers,
        screen=ScreenClient(policy),
        settler=settler,
        renewals=renewals,
        buffers=Buffers(config.max_buffered_bytes),
        sessions=sessions,
        pace=Pace(asyncio.get_running_loop()),
        instruments=instruments,
        books=Books(host.instance, sessions, settler, renewals),
    )
    front = Front(services, catalog, Preparer(catalog, config.max_body_bytes), config.max_total_s)
    fleet_pb2_grpc.add_BookkeepingServicer_to_server(BookkeepingServicer(services.books), host.grpc)
    listen(config, host, front)
    for close in (controlplane.close, policy_channel.close, router_channel.close, workers.close, settler.flush):
        host.on_close(close)
    host.export_spans(controlplane, "controlplane")
    for name, run in {
        "cards": catalog.run,
        "links": workers.keep_linked,
        "reports": router.run,
        "settlements": settler.run,
        "renewals": renewals.run,
    }.items():
        host.tasks.start(name, run)
    host.tasks.start("replicas", lambda: workers.follow(controlplane, host.instance))
    host.on_drain(lambda: drain(front, services, config.drain_s))


def listen(config: GatewayConfig, host: Host, front: Front) -> None:
    """The two public listeners."""
    tls = None
    if config.public_tls_cert is not None and config.public_tls_key is not None:
        tls = KeyPair(config.public_tls_cert, config.public_tls_key)
    public = host.add_public_listener("public_grpc", config.public_grpc_listen, tls=tls)
    inference_pb2_grpc.add_InferenceServicer_to_server(InferenceServicer(front), public)
    # Said at once, so that clients that wait for a gateway wait for the next one; what runs gets its time all the same.
    host.on_drain(lambda: public.stop(config.drain_s))
    app = build_app(front, host.health, config.max_body_bytes)
    limits = {"http": BoundedProtocol, "timeout_keep_alive": HTTP_IDLE_S}
    host.add_http_listener("public_http", config.public_http_listen, app, tls=tls, **limits)


async def drain(front: Front, services: Services, limit_s: float) -> None:
    """No new response; those that run get the time that is left, then end `cancelled`, settled."""
    front.draining = True
    try:
        await asyncio.wait_for(services.sessions.drained(), max(0.0, limit_s - 1.0))
    except TimeoutError:
        services.sessions.end_all()
        await services.sessions.drained()


def main() -> None:
    config = settings.load(GatewayConfig, service="gateway")
    # Measured: 2 to 15 % less CPU per token than asyncio's own loop on rate-limited streams, 2 to 3 % at full rate.
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    serve.run("gateway", config, partial(build, config))


if __name__ == "__main__":
    main()
