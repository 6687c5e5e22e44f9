"""Device time that a gateway hears of after it settled is booked beside the settlement, and charges nothing."""

from headrace.v1 import policy_pb2, response_pb2, routing_pb2
from headrace_gateway import messages
from headrace_gateway.lifecycle.outputs import Ack, Refusal, Terminal
from headrace_gateway.lifecycle.settlement import Prefill, Usage
from headrace_policy.decide import billed

CANCELLED = Terminal(3, "cancelled", "disconnect", "", Usage(1, 0, 1))


def test_it_names_its_response_its_attempt_and_its_replica_and_has_an_id_of_its_own() -> None:
    held = policy_pb2.Reservation(response_id="r", identity=policy_pb2.Identity(tenant="acme"), model="m")
    replica = response_pb2.ReplicaRef(id="w0", epoch="e1", endpoint="127.0.0.1:1")
    route = routing_pb2.RouteResponse(decision_id="d", replica=replica)
    one, two = (messages.late(held, Ack(2, 0, 700), route, CANCELLED, number) for number in (1, 2))
    assert (one.reservation.response_id, two.reservation.response_id, held.response_id) == ("r.2.1", "r.2.2", "r")
    assert (one.attempt_of, one.created, one.reason) == ("r", False, "disconnect")
    assert one.kind == response_pb2.TERMINAL_KIND_CANCELLED, "for a cost report that the settlement is not in"
    (usage,) = one.attempts
    assert (usage.attempt, usage.replica.id, usage.replica.epoch, usage.device_us) == (2, "w0", "e1", 700)
    assert usage.num_generated_tokens == 0, "its tokens are in no books: the worker was told so"
    assert one.source == policy_pb2.SETTLEMENT_SOURCE_OWNER
    charged = billed("released", one.num_prompt_tokens, one.num_cached_tokens, one.num_output_tokens)
    assert (charged.num_requests, charged.num_uncached, charged.num_output) == (0, 0, 0)


def test_so_is_what_another_replica_did_for_it() -> None:
    route = routing_pb2.RouteResponse(decision_id="d", replica=response_pb2.ReplicaRef(id="w0"))
    ack = Ack(1, 0, 700, Prefill("p0", "e2", 9000))
    (usage,) = messages.late(policy_pb2.Reservation(response_id="r"), ack, route, Refusal("client"), 1).attempts
    assert (usage.prefill.id, usage.prefill.epoch, usage.prefill_device_us) == ("p0", "e2", 9000)
