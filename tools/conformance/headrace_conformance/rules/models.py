"""The list of models, and whole answers against the OpenAPI document."""

from headrace_conformance import schema
from headrace_conformance.recording import Surface
from headrace_conformance.rule import Probe, Rule
from headrace_conformance.script import script
from headrace_conformance.target import PLAIN, Target
from headrace_conformance.tolerant import a_list, an_object
from headrace_conformance.verdict import Verdict, failed, judged, na, passed


async def listed(target: Target) -> Verdict:
    answer = await target.client.send("GET", "/v1/models")
    problems = schema.problems("ListModelsResponse", answer.json)
    names = [an_object(one).get("id") for one in a_list(an_object(answer.json).get("data"))]
    if target.model not in names:
        problems.append(f"{target.model!r} answers but is not listed: {names[:8]}")
    return judged(problems, f"{len(names)} models")


async def one_model(target: Target) -> Verdict:
    answer = await target.client.send("GET", f"/v1/models/{target.model}")
    if answer.status != 200:
        return failed(f"status {answer.status}")
    problems = schema.problems("Model", answer.json)
    if an_object(answer.json).get("id") != target.model:
        problems.append(f"id is {an_object(answer.json).get('id')!r}")
    return judged(problems, target.model)


async def unknown(target: Target) -> Verdict:
    answer = await target.client.send("GET", "/v1/models/no-such-model")
    return passed("404") if answer.status == 404 else failed(f"status {answer.status}")


def _whole(path: str, surface: Surface, name: str) -> Probe:
    async def probe(target: Target) -> Verdict:
        content = script("o", "k") if target.scripted else PLAIN
        if surface == "chat":
            answer = await target.whole(content, max_tokens=4)
        else:
            field, limit = ("prompt", "max_tokens") if surface == "completions" else ("input", "max_output_tokens")
            answer = await target.client.send("POST", path, json={"model": target.model, field: content, limit: 4})
        if answer.status in (404, 405):
            return na(f"{path} is not served")
        if answer.status != 200:
            return failed(f"status {answer.status}: {answer.body[:120]!r}")
        return judged(schema.problems(name, answer.json), f"fits {name}")

    return probe


RULES = (
    Rule("models.list", "The list of models fits the document and has the model that answers",
         "clients fill their menus from it", listed),
    Rule("models.get", "A model can be looked up by its name", "clients check a name before they use it", one_model),
    Rule("models.unknown", "An unknown model is a 404", "anything else reads as an outage", unknown),
    Rule("whole.chat", "A whole chat fits the OpenAI OpenAPI document", "generated clients reject anything else",
         _whole("/v1/chat/completions", "chat", "CreateChatCompletionResponse")),
    Rule("whole.completion", "A whole completion fits the OpenAI OpenAPI document",
         "generated clients reject anything else",
         _whole("/v1/completions", "completions", "CreateCompletionResponse")),
    Rule("whole.response", "A whole response fits the OpenAI OpenAPI document",
         "generated clients reject anything else", _whole("/v1/responses", "responses", "Response")),
)  # fmt: skip
