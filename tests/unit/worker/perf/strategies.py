"""Hypothesis strategies for shapes, layouts and cards: plain, valid, small enough to shrink well."""

from hypothesis import strategies as st

from headrace_worker.perf.cards import CARDS, Card
from headrace_worker.perf.layout import Layout, is_possible
from headrace_worker.perf.model_shape import ModelShape


@st.composite
def shapes(draw: st.DrawFn) -> ModelShape:
    """A dense model whose heads and widths are multiples of 8 or of a small odd count."""
    kv_heads = draw(st.sampled_from([1, 2, 3, 4, 8]))
    head_dim = draw(st.sampled_from([64, 128]))
    heads = kv_heads * draw(st.sampled_from([1, 2, 4, 8]))
    return ModelShape(
        name="drawn",
        num_layers=draw(st.integers(1, 96)),
        hidden_size=heads * head_dim,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=draw(st.integers(1, 64)) * 24 * 16,
        vocab_size=draw(st.integers(1, 64)) * 2048,
        max_context=131072,
        tied_embeddings=draw(st.booleans()),
        gated_mlp=draw(st.booleans()),
        nominal_params=draw(st.none() | st.integers(10**6, 10**12)),
    )


@st.composite
def placements(draw: st.DrawFn) -> tuple[ModelShape, Layout]:
    """A shape and a layout that it allows."""
    shape = draw(shapes())
    layouts = [Layout(tensor, pipeline) for tensor in (1, 2, 3, 4, 8) for pipeline in (1, 2, 3, 4)]
    return shape, draw(st.sampled_from([layout for layout in layouts if is_possible(shape, layout)]))


def cards() -> st.SearchStrategy[Card]:
    """Any published card."""
    return st.sampled_from(list(CARDS.values()))
