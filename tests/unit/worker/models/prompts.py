"""The twenty prompts of the golden outputs: chat and raw, short and long, code, digits and other scripts."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Prompt:
    """`raw` text is a completion; all other text is a user's message in the chat template."""

    text: str
    raw: bool = False


PROMPTS = (
    Prompt("What is the capital of France?"),
    Prompt("Write a haiku about rivers."),
    Prompt("Explain photosynthesis to a child in two sentences."),
    Prompt("List three uses of copper."),
    Prompt("Translate 'good morning' into Spanish."),
    Prompt("Write a Python function that returns the factorial of n."),
    Prompt("What is 17 + 25? Show your steps."),
    Prompt("Summarize the story of Icarus."),
    Prompt("Give me a short recipe for pancakes."),
    Prompt("Why is the sky blue?"),
    Prompt("¿Cuál es la capital de España?"),
    Prompt("Name the planets of the solar system, in order."),
    Prompt("Write an email to my landlord about a broken window. " * 12),
    Prompt("def fibonacci(n):\n    ", raw=True),
    Prompt("Once upon a time, in a village by the sea,", raw=True),
    Prompt("The water wheel turned slowly because", raw=True),
    Prompt("In 1969, the first people walked on the", raw=True),
    Prompt("Q: What colour is grass?\nA:", raw=True),
    Prompt('{\n  "name": "headrace",\n  "version":', raw=True),
    Prompt("The quick brown fox jumps over the lazy dog. " * 30, raw=True),
)
