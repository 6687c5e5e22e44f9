"""`headrace chat`: one streamed answer, over the gRPC contract."""

import argparse
import json
import sys
import time
from typing import Any

from headrace_cli.client import Client, Stream
from headrace_cli.natural import natural
from headrace_cli.platform.state_dir import CommandError, StateDir

HELP = "one streamed answer"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", metavar="TEXT", help="what to say; - reads standard input")
    parser.add_argument("--model", help="model or alias (default: the only one)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="randomness (default 0: none)")
    parser.add_argument("--max-tokens", type=natural, metavar="N", help="most tokens to generate")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end instead of the stream")


def run(options: argparse.Namespace) -> int:
    state = StateDir.resolve(options.state_dir)
    announced = state.announced("gateway")
    if announced is None:
        raise CommandError(f"no gateway runs in {state.root} (start it with: headrace up)")
    text = sys.stdin.read() if options.text == "-" else options.text
    messages = [{"role": "system", "content": options.system}] if options.system else []
    messages.append({"role": "user", "content": text})
    with Client(announced["public_grpc"], api_key=state.read_secret(state.api_key)) as client:
        model = options.model or _only_model(client)
        with client.generate(
            model, messages, temperature=options.temperature, max_output_tokens=options.max_tokens
        ) as stream:
            return _print_json(stream) if options.json else _print_stream(stream)


def _only_model(client: Client) -> str:
    models = [model.id for model in client.models()]
    if len(models) != 1:
        raise CommandError(f"--model: name one of {', '.join(models) or '(the fleet has no model)'}")
    return models[0]


def _print_stream(stream: Stream) -> int:
    for event in stream:
        if event.WhichOneof("event") == "delta":
            print(event.delta.text, end="", flush=True)
    print()
    if stream.kind == "incomplete":
        print(f"(cut: {stream.terminal.incomplete.reason})" if stream.terminal else "", file=sys.stderr)
    stream.raise_for_terminal()
    return 0


def _print_json(stream: Stream) -> int:
    started = time.monotonic()
    first_text_s: float | None = None
    for event in stream:
        if first_text_s is None and event.WhichOneof("event") == "delta":
            first_text_s = time.monotonic() - started
    print(json.dumps(_summary(stream, first_text_s, time.monotonic() - started), ensure_ascii=False, indent=2))
    return 0 if stream.kind in ("completed", "incomplete") else 1


def _summary(stream: Stream, first_text_s: float | None, total_s: float) -> dict[str, Any]:
    usage, terminal = stream.usage, getattr(stream.terminal, stream.kind)
    assert usage is not None, "the stream ended with a terminal"
    return {
        "response_id": stream.response_id,
        "model": stream.created.model if stream.created else None,
        "snapshot_version": stream.created.snapshot_version if stream.created else None,
        "text": stream.texts.get(0, ""),
        "terminal": stream.kind,
        "reason": getattr(terminal, "reason", stream.finish_reasons.get(0, "")),
        "usage": {
            "prompt_tokens": usage.num_prompt_tokens,
            "cached_tokens": usage.num_cached_tokens,
            "completion_tokens": usage.num_output_tokens,
        },
        "ttft_s": first_text_s,
        "total_s": total_s,
    }
