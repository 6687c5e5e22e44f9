"""The control plane's command: builds everything and wires it to the process. Knows all parts and does no work."""

import os
import sqlite3
from functools import partial
from pathlib import Path

from headrace.v1 import fleet_pb2_grpc
from headrace_controlplane import bootstrap, placement, trace_receiver
from headrace_controlplane.accountant import Accountant
from headrace_controlplane.admin_servicer import AdminServicer, Office
from headrace_controlplane.artifacts import Artifacts
from headrace_controlplane.auditor import Auditor, Sources
from headrace_controlplane.config import ControlplaneConfig
from headrace_controlplane.demand import DemandBoard
from headrace_controlplane.fleet_servicer import FleetServicer, FleetState, reachable
from headrace_controlplane.foreman import Foreman
from headrace_controlplane.launcher import devices
from headrace_controlplane.launcher.process import ProcessLauncher
from headrace_controlplane.launcher.ray_cluster import RayLauncher, RaySite
from headrace_controlplane.launcher.several import Launchers
from headrace_controlplane.launcher.worker_command import WorkerSite
from headrace_controlplane.ledger import Ledger, Surroundings
from headrace_controlplane.lifetimes import Lifetimes
from headrace_controlplane.metrics_of_all import MetricsOfAll
from headrace_controlplane.peers import Peers
from headrace_controlplane.questions import Questions
from headrace_controlplane.referee import Referee
from headrace_controlplane.roll_call import RollCall
from headrace_controlplane.roster import Roster
from headrace_controlplane.scale_book import ScaleBook
from headrace_controlplane.scaler import Scaler
from headrace_controlplane.speech import Speeches
from headrace_controlplane.store import Store, StoreError
from headrace_controlplane.subscribers import Subscribers
from headrace_controlplane.trace_store import TraceStore
from headrace_controlplane.vault import Vault
from headrace_kit import serve, settings
from headrace_kit.errors import HeadraceError
from headrace_kit.listeners import StartError
from headrace_kit.serve import Host


def open_ledger(config: ControlplaneConfig, store: Store, around: Surroundings) -> Ledger:
    """The ledger with a fleet in force."""
    try:
        ledger = Ledger(store, Vault.open(config.state_dir / "secrets"), around)
        bootstrap.first_fleet(ledger, config.fleet)
        bootstrap.ensure_key(ledger, config.bootstrap_key_file)
    except (bootstrap.BootstrapError, ValueError) as error:
        raise StartError(2, str(error)) from error
    return ledger


def worker_site(config: ControlplaneConfig, host: Host) -> WorkerSite:
    directory = _absolute(config.state_dir) / "workers"
    tls = {"tls-ca": config.tls_ca, "tls-cert": config.tls_cert, "tls-key": config.tls_key}
    return WorkerSite(
        # Workers are on this host, so "all addresses" is reached through one of them.
        controlplane=config.advertise or reachable(host.grpc.address, "unix:"),
        service_token_file=_absolute(config.service_token_file),
        state_dir=_absolute(config.weights_dir or config.state_dir / "weights"),
        directory=directory,
        extra={name: str(_absolute(path)) for name, path in tls.items() if path is not None},
        devices=_devices(config),
    )


def _devices(config: ControlplaneConfig) -> placement.Host | None:
    try:
        return devices.parse(config.devices) if config.devices else devices.read()
    except ValueError as error:
        raise StartError(2, f"devices: {error}") from error


async def build(config: ControlplaneConfig, host: Host) -> None:
    try:
        store = Store(config.state_dir / "controlplane.db")
        lifetimes = Lifetimes(config.state_dir / "lifetimes.db")
        gate = bootstrap.open_gate(store, config.admin_key_file or config.state_dir / "admin_key")
    except (StoreError, bootstrap.BootstrapError, sqlite3.Error, HeadraceError) as error:
        raise StartError(2, str(error)) from error
    roster = Roster(config.state_dir / "replicas.pb", lease_s=config.lease_s)
    artifacts, subscribers = Artifacts(config.state_dir / "artifacts"), Subscribers()
    ledger = open_ledger(config, store, Surroundings(roster.serving, Speeches(artifacts.read)))
    board, book = DemandBoard(), ScaleBook(config.state_dir / "scaling.json")
    state = FleetState(ledger, roster, artifacts, subscribers, board, Referee(ledger))
    site = worker_site(config, host)
    ray = RayLauncher(config.state_dir / "ray", RaySite(config.ray_address, config.ray_namespace, config.ray_dir))
    launchers = Launchers({"process": ProcessLauncher(site.directory), "ray": ray})
    foreman = Foreman(ledger, roster, launchers, site, book=book)
    scaler = Scaler(ledger, board, subscribers, foreman, book)
    peers = Peers(host.service_token, host.tls)
    questions = Questions(subscribers, peers)
    accountant = Accountant(lifetimes, ledger, roster, questions)
    auditor = Auditor(Sources(RollCall(subscribers), peers, questions, roster.registry, lifetimes))
    traces = TraceStore(config.max_traces, config.max_trace_bytes)
    metrics = MetricsOfAll(subscribers, roster.registry, peers)
    office = Office(state, gate, questions, foreman, accountant, auditor, metrics, traces, scaler)
    trace_receiver.add_to(host.grpc, traces)
    fleet_pb2_grpc.add_FleetServicer_to_server(FleetServicer(state, host.draining), host.grpc)
    fleet_pb2_grpc.add_AdminServicer_to_server(AdminServicer(office), host.grpc)
    host.health.add("store")
    host.health.serving("store")
    host.tasks.start("leases", roster.run_out_leases, on_crash="fail")
    host.tasks.start("roster_store", roster.store)
    host.tasks.start("foreman", foreman.run)
    host.tasks.start("scaler", scaler.run)
    host.tasks.start("lifetimes", accountant.keep)
    host.tasks.start("audit", auditor.run)

    async def close() -> None:
        store.close()
        lifetimes.close()
        ray.close()

    host.on_close(close)
    host.on_close(peers.close)


def main() -> None:
    config = settings.load(ControlplaneConfig, service="controlplane")
    serve.run("controlplane", config, partial(build, config))


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))


if __name__ == "__main__":
    main()
