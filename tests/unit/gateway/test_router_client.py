"""Every call to a router says which gateway process it is of."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from headrace.v1 import routing_pb2 as pb
from headrace.v1 import routing_pb2_grpc
from headrace_gateway.upstreams.router import RouterClient
from headrace_kit import telemetry
from headrace_kit.channels import connect
from headrace_kit.lifecycle import cancel_and_wait


class Router(routing_pb2_grpc.RouterServicer):
    def __init__(self) -> None:
        self.asked: list[pb.RouteRequest] = []
        self.told: asyncio.Queue[pb.ReportRequest] = asyncio.Queue()

    async def Route(self, request: pb.RouteRequest, context: Any) -> pb.RouteResponse:
        self.asked.append(request)
        return pb.RouteResponse(decision_id="d")

    async def Report(self, request: pb.ReportRequest, context: Any) -> pb.ReportResponse:
        if any(outcome.outcome == "absurd" for outcome in request.outcomes):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "outcome: is unknown")
        self.told.put_nowait(request)
        return pb.ReportResponse()


@asynccontextmanager
async def serve(router: Router) -> AsyncIterator[RouterClient]:
    server = grpc.aio.server()
    routing_pb2_grpc.add_RouterServicer_to_server(router, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with connect(f"127.0.0.1:{port}", token="t") as channel, asyncio.timeout(30):
        yield RouterClient(channel, "process-1")
    await server.stop(None)


async def test_requests_and_reports_name_their_gateway() -> None:
    router = Router()
    async with serve(router) as client:
        running = asyncio.create_task(client.run())
        assert (await client.route(pb.RouteRequest(response_id="r"), 10.0)).decision_id == "d"
        client.report(pb.AttemptOutcome(decision_id="d", outcome="completed"))
        told = await router.told.get()
        await cancel_and_wait(running)
    assert [(one.response_id, one.gateway_id) for one in router.asked] == [("r", "process-1")]
    assert (told.gateway_id, [one.decision_id for one in told.outcomes]) == ("process-1", ["d"])


async def test_an_outcome_that_the_router_refuses_is_lost_alone_and_counted() -> None:
    router = Router()
    before = telemetry.REGISTRY.get_sample_value("route_reports_dropped_total") or 0.0
    async with serve(router) as client:
        for outcome in ("completed", "absurd", "failed"):
            client.report(pb.AttemptOutcome(decision_id=outcome, outcome=outcome))
        running = asyncio.create_task(client.run())
        told = [await router.told.get(), await router.told.get()]
        client.report(pb.AttemptOutcome(decision_id="next", outcome="completed"))
        told.append(await router.told.get())
        await cancel_and_wait(running)
    assert [[one.decision_id for one in each.outcomes] for each in told] == [["completed"], ["failed"], ["next"]]
    assert telemetry.REGISTRY.get_sample_value("route_reports_dropped_total") == before + 1
